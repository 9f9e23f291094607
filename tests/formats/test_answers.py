"""Answers as token ids: what is written is read, and what is no answer is named with its line."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from draftwing.core.errors import UserError
from draftwing.formats.answers import TokenAnswer, line_of, read_answers, read_whole_lines

ANSWERS = [TokenAnswer("ab", [5, 6, 7], [False, True, True]), TokenAnswer("cd", [1], [False])]


def _write(path: Path, lines: list[str]) -> Path:
    content = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    path = _write(tmp_path / name, ["", *map(line_of, ANSWERS), line_of(ANSWERS[0])])
    assert read_answers(path, 8) == ANSWERS
    assert read_answers(path, 8, limit=1) == ANSWERS[:1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 is not an answer"),
        ('["ab",[1]]', "not an array of three"),
        ("[7,[1],[1]]", "id is no text"),
        ('["x",[1.5],[1]]', "not all whole numbers"),
        ('["x",[-1],[1]]', "not all whole numbers"),
        ('["x",[true],[1]]', "not all whole numbers"),
        ('["x",[1],[2]]', "not all 0 or 1"),
        ('["x",[1,2],[1]]', "2 tokens and a mask of 1"),
        ('["x",[],[]]', "0 tokens"),
        ('["x",[8],[1]]', "token 8, and the target only 8 tokens"),
    ],
)
def test_a_line_that_is_no_answer_is_named(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        read_answers(_write(tmp_path / "a.jsonl", [line_of(ANSWERS[0]), line]), 8)


def test_files_that_are_no_answers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cut.gz").write_bytes(gzip.compress(line_of(ANSWERS[0]).encode() * 500)[:-20])
    (tmp_path / "text.gz").write_bytes(b"no gzip")
    (tmp_path / "latin").write_bytes(b"\xe9\xe8")
    (tmp_path / "empty").write_text("\n\n")
    for name in ("cut.gz", "text.gz", "latin", "empty", "missing"):
        with pytest.raises(UserError, match="Give a file written by Draftwing"):
            read_answers(tmp_path / name, 8)


def test_a_line_that_a_kill_cut_is_passed_over(tmp_path: Path) -> None:
    cut = line_of(ANSWERS[0])[:-4]
    path = _write(tmp_path / "a.jsonl", [cut, line_of(ANSWERS[1])])
    assert list(read_whole_lines(path)) == ANSWERS[1:]
    assert list(read_whole_lines(tmp_path / "missing")) == []
