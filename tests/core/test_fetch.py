"""Fetching one file out of one wheel: pip does the download (here a stand-in), the digest decides."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from draftwing.core.errors import UserError
from draftwing.core.fetch import WheelFile, fetch_from_wheel, require_digest

CONTENT = b"a file worth having\n" * 500
WANTED = WheelFile("some-wheel==1.0", "inside/data.bin", hashlib.sha256(CONTENT).hexdigest())
Pip = Callable[[Path], subprocess.CompletedProcess[str]]


def _wheel(path: Path, member: str = WANTED.member, content: bytes = CONTENT) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(member, content)
    return path


def _gives(make: Callable[[Path], object]) -> Pip:
    """A pip that succeeds, with what `make` puts into the folder."""

    def pip(folder: Path) -> subprocess.CompletedProcess[str]:
        make(folder / "some_wheel-1.0-py3-none-any.whl")
        return subprocess.CompletedProcess([], 0, "", "")

    return pip


def _fails(stderr: str) -> Pip:
    return lambda _folder: subprocess.CompletedProcess([], 1, "", stderr)


def _damage_data(path: Path) -> None:
    """A wheel whose directory is whole and whose compressed bytes are not."""
    whole = bytearray(_wheel(path).read_bytes())
    start = 30 + len(WANTED.member)
    whole[start : start + 20] = b"\xff" * 20
    path.write_bytes(bytes(whole))


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pip], list[list[str]]]:
    """Put a stand-in for pip in place; returns the list of the commands that it will have been given."""

    def put(pip: Pip) -> list[list[str]]:
        commands: list[list[str]] = []

        def run(command: list[str], **_options: object) -> subprocess.CompletedProcess[str]:
            commands.append(command)
            return pip(Path(command[command.index("--dest") + 1]))

        monkeypatch.setattr(subprocess, "run", run)
        return commands

    return put


Install = Callable[[Pip], list[list[str]]]


def test_the_file_is_taken_out_and_nothing_else_is_left(tmp_path: Path, install: Install) -> None:
    commands = install(_gives(_wheel))
    destination = tmp_path / "deep" / "data.bin"
    assert fetch_from_wheel(WANTED, destination) == destination
    assert destination.read_bytes() == CONTENT
    assert [path.name for path in destination.parent.iterdir()] == ["data.bin"]
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert commands[0][-1] == "some-wheel==1.0"
    assert "--no-deps" in commands[0]


def test_a_file_that_is_there_is_not_fetched_again(tmp_path: Path, install: Install) -> None:
    commands = install(_fails("must not be called"))
    (tmp_path / "data.bin").write_bytes(b"mine")
    assert fetch_from_wheel(WANTED, tmp_path / "data.bin").read_bytes() == b"mine"
    assert commands == []


@pytest.mark.parametrize(
    ("pip", "words"),
    [
        (_fails("WARNING: retrying\nERROR: No matching distribution\n"), "==1.0: ERROR: No matching distribution."),
        (_fails(""), "could not download some-wheel==1.0: pip gave no reason"),
        (_fails("ERROR: no network"), "connect to a package index, or put the file at "),
        (_gives(lambda path: None), "could not download some-wheel==1.0"),
        (_gives(lambda path: path.write_bytes(b"not a zip")), "does not hold inside/data.bin"),
        (_gives(lambda path: path.write_bytes(_wheel(path).read_bytes()[:-60])), "Clear pip's cache"),
        (_gives(lambda path: _wheel(path, member="other.bin")), "does not hold inside/data.bin"),
        (_gives(lambda path: _wheel(path, content=b"another version")), "has the digest"),
        pytest.param(_gives(_damage_data), "Clear pip's cache"),
    ],
    ids=[
        "last-line-of-pip",
        "silent-pip",
        "no-network",
        "no-wheel",
        "no-zip",
        "cut-wheel",
        "no-member",
        "digest",
        "damaged-data",
    ],
)
def test_a_failed_fetch_says_why_and_leaves_nothing(tmp_path: Path, install: Install, pip: Pip, words: str) -> None:
    install(pip)
    with pytest.raises(UserError) as error:
        fetch_from_wheel(WANTED, tmp_path / "data.bin")
    assert words in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_digest_is_of_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(CONTENT)
    require_digest(path, WANTED.sha256)
    path.write_bytes(CONTENT[:-1] + b"!")
    with pytest.raises(UserError, match=rf"data\.bin has the digest .*, expected {WANTED.sha256[:16]}.*delete it"):
        require_digest(path, WANTED.sha256)
