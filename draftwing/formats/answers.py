"""Answers kept as token ids: one JSON array a line, [prompt id, token ids, mask of response tokens]; .gz or plain.

Small (about a byte a token when compressed) and enough: the states of a known answer are one prefill.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from draftwing.core.errors import UserError


@dataclass(frozen=True)
class TokenAnswer:
    """A conversation as tokens, and which of them are the response's."""

    id: str
    tokens: list[int]
    mask: list[bool]


def line_of(answer: TokenAnswer) -> str:
    """The answer as one line of a file."""
    return json.dumps([answer.id, answer.tokens, [int(bit) for bit in answer.mask]], separators=(",", ":"))


def answer_of(line: str) -> TokenAnswer:
    """Read one line; ValueError says what is wrong with it."""
    row = json.loads(line)
    if not isinstance(row, list) or len(row) != 3:
        raise ValueError("not an array of three: prompt id, token ids, mask")
    id_, tokens, mask = row
    if not isinstance(id_, str) or not id_:
        raise ValueError("its prompt id is no text")
    if not isinstance(tokens, list) or not all(type(token) is int and token >= 0 for token in tokens):
        raise ValueError("its token ids are not all whole numbers from 0 on")
    if not isinstance(mask, list) or not all(bit in (0, 1) for bit in mask):
        raise ValueError("its mask is not all 0 or 1")
    if len(tokens) != len(mask) or not tokens:
        raise ValueError(f"it has {len(tokens)} tokens and a mask of {len(mask)}")
    return TokenAnswer(id_, tokens, [bool(bit) for bit in mask])


def read_answers(path: Path, vocab_size: int, limit: int | None = None) -> list[TokenAnswer]:
    """All answers of a file in its order, each id once (the first counts).

    Raises UserError naming the line that is no answer, or holds a token that the vocabulary has not.
    """
    remedy = "Give a file written by Draftwing: one JSON array [prompt id, token ids, mask] a line, .gz or plain."
    answers: dict[str, TokenAnswer] = {}
    try:
        with _open(path) as file:
            for number, line in _lines(file):
                try:
                    answer = answer_of(line)
                except ValueError as error:
                    raise UserError(f"{path}, line {number} is not an answer: {error}.", remedy) from None
                if (largest := max(answer.tokens)) >= vocab_size:
                    raise UserError(
                        f"{path}, line {number} has token {largest}, and the target only {vocab_size} tokens.",
                        "Give answers of this target.",
                    )
                answers.setdefault(answer.id, answer)
                if len(answers) == limit:
                    break
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise UserError(f"{path} can not be read as answers ({error}).", remedy) from None
    if not answers:
        raise UserError(f"{path} holds no answers.", remedy)
    return list(answers.values())


def read_whole_lines(path: Path) -> Iterator[TokenAnswer]:
    """Answers of a file that a kill may have cut: lines that are no answer are passed over."""
    if not path.exists():
        return
    with _open(path) as file:
        for _, line in _lines(file):
            try:
                yield answer_of(line)
            except ValueError:
                continue


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _lines(file: IO[str]) -> Iterator[tuple[int, str]]:
    return ((number, line) for number, line in enumerate(file, 1) if line.strip())
