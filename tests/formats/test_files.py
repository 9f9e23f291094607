"""Files are whole or absent, whatever happens while they are written; unreadable JSON is named."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from draftwing.core.errors import UserError
from draftwing.formats.files import digest_file, digest_of, owned, read_json, require_room, whole_file, write_json
from draftwing.formats.tensors import open_tensors, save_tensors

Write = Callable[[Path], None]


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_appears_with_its_name_at_once(tmp_path: Path) -> None:
    path = tmp_path / "new" / "deep" / "file"
    with whole_file(path) as temporary:
        temporary.write_text("half")
        assert not path.exists()
        assert temporary.parent == path.parent, "only inside one file system is a rename atomic"
        temporary.write_text("whole")
        number = temporary.stat().st_ino
    assert path.read_text() == "whole"
    assert path.stat().st_ino == number, "renamed, not copied"
    assert _names(path.parent) == ["file"]
    assert path.stat().st_mode & 0o777 == 0o644


def _break_off(path: Path, error: BaseException) -> None:
    with whole_file(path) as temporary:
        temporary.write_text("half of the new")
        raise error


@pytest.mark.parametrize(
    "error", [RuntimeError("bug"), KeyboardInterrupt(), UserError("It is full.", "Free it.")], ids=repr
)
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, error: BaseException) -> None:
    (tmp_path / "file").write_text("old")
    with pytest.raises(type(error)):
        _break_off(tmp_path / "file", error)
    assert (tmp_path / "file").read_text() == "old"
    assert _names(tmp_path) == ["file"]


def test_a_full_disk_at_the_last_moment_is_a_users_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems tell of a full disk only when the file is synced."""

    def full(_handle: int) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    write_json(tmp_path / "a.json", {"old": 1})
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"Writing .*a\.json failed: No space left on device\. Free some space"):
        write_json(tmp_path / "a.json", {"new": 1})
    assert read_json(tmp_path / "a.json", "file", "") == {"old": 1}
    assert _names(tmp_path) == ["a.json"]


@contextmanager
def _files_of_at_most(size: int) -> Iterator[None]:
    """The system refuses to let any file of this process grow past `size`: as good as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_json(path, list(range(100_000))),
        pytest.param(lambda path: save_tensors(path, {"a": torch.ones(100_000)})),
    ],
    ids=["json", "tensors"],
)
def test_a_write_that_breaks_off_is_a_users_error(tmp_path: Path, write: Write) -> None:
    (tmp_path / "file").write_text("old")
    with _files_of_at_most(50_000), pytest.raises(UserError, match="Free some space or choose another folder"):
        write(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "old"
    assert _names(tmp_path) == ["file"]


def test_a_folder_that_can_not_be_made_is_a_users_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(UserError, match="choose another folder"):
        write_json(tmp_path / "file" / "a.json", 1)


@pytest.mark.parametrize("content", [{"b": [1, 2.5, None], "a": "ünï ✓"}, [], "text", 3])
def test_json_comes_back_as_it_was(tmp_path: Path, content: object) -> None:
    write_json(tmp_path / "a.json", content)
    assert read_json(tmp_path / "a.json", "file", "") == content


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: None, r"There is no drafter config at .*a\.json\. Give a folder\."),
        (lambda path: path.write_text('{"a": 1'), r"The drafter config at .*a\.json can not be read.*Give a folder\."),
        (lambda path: path.write_bytes(b"\xff\xfe{}"), r"The drafter config at .* can not be read.*utf-8"),
        (lambda path: path.write_text(""), r"can not be read"),
        (lambda path: path.mkdir(), r"can not be read.*Is a directory"),
    ],
    ids=["missing", "cut", "binary", "empty", "folder"],
)
def test_json_that_can_not_be_read_is_named(tmp_path: Path, make: Write, words: str) -> None:
    make(tmp_path / "a.json")
    with pytest.raises(UserError, match=words):
        read_json(tmp_path / "a.json", "drafter config", "Give a folder.")


def test_digests(tmp_path: Path) -> None:
    """Of content: the order of keys is no part of it, types and values are. Of a file: its bytes."""
    assert digest_of({"a": 1, "b": [2, 3]}) == digest_of({"b": [2, 3], "a": 1})
    assert len({digest_of(content) for content in ({"a": 1}, {"a": 2}, {"a": "1"}, {"b": 1}, [1], 1)}) == 6
    (tmp_path / "file").write_bytes(b"abc" * 10000)
    assert digest_file(tmp_path / "file") == hashlib.sha256(b"abc" * 10000).hexdigest()


@pytest.mark.parametrize(("free", "refused"), [(1.6e9, False), (1.4e9, True)])
def test_room_is_stated_and_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: float, refused: bool
) -> None:
    """T24: 65536 tokens of 4 states, width 2880, 2 bytes are 1.51 GB."""
    monkeypatch.setattr("shutil.disk_usage", lambda _folder: type("Usage", (), {"free": int(free)}))
    said: list[str] = []
    need = 65536 * 4 * 2880 * 2
    if refused:
        with pytest.raises(UserError, match=r"has 1\.40 GB free and this may need 1\.51 GB\. Choose another folder"):
            require_room(tmp_path / "new", need, said.append)
    else:
        require_room(tmp_path / "new", need, said.append)
    assert len(said) == 1
    assert said[0].startswith("Will write at most 1.51 GB to ")
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize("kept", [0, 5, 40, -1])
def test_a_truncated_tensor_file_is_named(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a.safetensors"
    save_tensors(path, {"a": torch.ones(100), "b": torch.ones(2, 2).T})
    assert open_tensors(path).get_tensor("b").shape == (2, 2)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"a\.safetensors can not be read .*incomplete or damaged"):
        open_tensors(path)
    with pytest.raises(UserError, match="There is no tensor file"):
        open_tensors(tmp_path / "b.safetensors")


def test_a_folder_has_one_owner_until_it_lets_go_or_dies(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "run"
    with owned(folder):
        with pytest.raises(UserError, match=r"Another run is writing to .*run\. Wait"), owned(folder):
            pass
        with owned(tmp_path / "beside"):
            pass
    with pytest.raises(KeyboardInterrupt), owned(folder):
        raise KeyboardInterrupt
    script = (
        f"import os, pathlib, draftwing.formats.files as f\nwith f.owned(pathlib.Path({str(folder)!r})): os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 9
    with owned(folder):
        pass


def test_a_folder_that_can_not_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file can not be written to"), owned(tmp_path / "file"):
        pass
