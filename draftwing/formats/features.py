"""Features on disk: shards of samples, an index, and a contract; read back through a memory map.

A folder holds

    index.json            version, contract, and for every shard its file and samples with their digests
    shard-00000.safetensors ...

and a shard holds its samples end to end (R rows in all, S = taps + 1 states, H hidden):

    tokens [R] int32      token ids
    mask   [R] uint8      1 where the token is part of a response
    argmax [R] int32      the target's greedy choice after this token
    states [R, S, H]      the tapped boundaries low to high, then B_n before the final norm

A shard counts once the index lists it, and the index is replaced atomically: a kill at any moment leaves
whole samples, each of them once.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from draftwing.core.errors import UserError
from draftwing.formats.contract import Contract, parse
from draftwing.formats.files import read_json, write_json
from draftwing.formats.tensors import open_tensors, save_tensors

INDEX = "index.json"
SHARD_TOKENS = 50_000
# A kill loses no more work than this.
SHARD_SECONDS = 120.0


@dataclass(frozen=True)
class Sample:
    """One conversation as the target saw it. T tokens, S states (taps, then B_n), H hidden."""

    id: str
    tokens_T: Tensor
    mask_T: Tensor
    argmax_T: Tensor
    states_TSH: Tensor

    def __post_init__(self) -> None:
        marked = int(self.mask_T.sum())
        if not 0 < marked < len(self.mask_T):
            amount = "no" if marked == 0 else "only"
            raise UserError(
                f"Sample {self.id} has {amount} response tokens.",
                "The chat template does not part prompt from response: check it, or drop the sample.",
            )


class Entry(BaseModel):
    """Where a sample lies inside its shard."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    id: str
    start: int
    length: int
    # Of its rows; None in folders that were written before there was one.
    digest: str | None = None


class Shard(BaseModel):
    """One file of samples."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    file: str
    samples: tuple[Entry, ...]


class Index(BaseModel):
    """The table of contents."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    version: Literal[1] = 1
    contract: Contract
    shards: tuple[Shard, ...] = ()


class FeatureWriter:
    """Collects samples and writes a shard whenever enough have come; opens an existing folder to go on."""

    def __init__(self, folder: Path, contract: Contract, shard_tokens: int = SHARD_TOKENS) -> None:
        self.folder = folder
        self._shard_tokens = shard_tokens
        self._pending: list[Sample] = []
        self._flushed_at = time.monotonic()
        self._index = Index(contract=contract)
        if (folder / INDEX).exists():
            self._index = read_index(folder)
            if self._index.contract != contract:
                raise UserError(f"{folder} holds features of another target or other taps.", "Choose another folder.")
        else:
            write_json(folder / INDEX, self._index.model_dump(mode="json"))
        self.done = {entry.id for shard in self._index.shards for entry in shard.samples}
        self.tokens = sum(entry.length for shard in self._index.shards for entry in shard.samples)

    def add(self, sample: Sample) -> None:
        """Take one sample. Raises UserError for rows that are zero, NaN or infinite, naming sample and boundary."""
        if sample.id in self.done:
            raise ValueError(f"sample {sample.id} is written already")
        _require_sound(
            sample, self._index.contract, "The target or its weights are broken, or the dtype overflows: try float32."
        )
        self.done.add(sample.id)
        self.tokens += len(sample.tokens_T)
        self._pending.append(sample)
        late = time.monotonic() - self._flushed_at > SHARD_SECONDS
        if late or sum(len(held.tokens_T) for held in self._pending) >= self._shard_tokens:
            self.flush()

    def flush(self) -> None:
        """Write what is pending as one shard and list it."""
        self._flushed_at = time.monotonic()
        if not self._pending:
            return
        name = f"shard-{len(self._index.shards):05d}.safetensors"
        save_tensors(
            self.folder / name,
            {
                "tokens": torch.cat([sample.tokens_T for sample in self._pending]).int(),
                "mask": torch.cat([sample.mask_T for sample in self._pending]).to(torch.uint8),
                "argmax": torch.cat([sample.argmax_T for sample in self._pending]).int(),
                "states": torch.cat([sample.states_TSH for sample in self._pending]),
            },
        )
        entries, start = [], 0
        for sample in self._pending:
            entries.append(Entry(id=sample.id, start=start, length=len(sample.tokens_T), digest=_digest(sample)))
            start += len(sample.tokens_T)
        shards = (*self._index.shards, Shard(file=name, samples=tuple(entries)))
        index = self._index.model_copy(update={"shards": shards})
        write_json(self.folder / INDEX, index.model_dump(mode="json"))
        # Only now: a flush that is interrupted and repeated writes the same shard again, and no second one.
        self._index, self._pending = index, []


def _digest(sample: Sample) -> str:
    """Of a sample's rows as they are stored."""
    digest = hashlib.sha256()
    stored = (sample.tokens_T.int(), sample.mask_T.to(torch.uint8), sample.argmax_T.int(), sample.states_TSH)
    for tensor in stored:
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()[:16]


def _require_sound(sample: Sample, contract: Contract, remedy: str) -> None:
    names = [*(f"B_{tap}" for tap in contract.taps.boundaries), f"B_{contract.target.layers}"]
    largest_TS = sample.states_TSH.abs().amax(-1).float()
    bad_TS = ~torch.isfinite(largest_TS) | (largest_TS == 0)
    if bool(bad_TS.any()):
        row, state = (int(number) for number in bad_TS.nonzero()[0])
        kind = "zero" if largest_TS[row, state] == 0 else "NaN or infinite"
        raise UserError(
            f"Sample {sample.id}: the state {names[state]} of token {row} is {kind}.",
            remedy,
        )


def read_index(folder: Path) -> Index:
    """Read a folder's index; UserError when there is none or it is broken."""
    remedy = "Make features with `draftwing capture`."
    return parse(Index, read_json(folder / INDEX, "feature index", remedy), folder / INDEX)


def _open_shard(folder: Path, shard: Shard) -> dict[str, Tensor]:
    """The mapped tensors of a shard; UserError unless each holds the rows that the index places in it."""
    file = open_tensors(folder / shard.file)
    rows = sum(entry.length for entry in shard.samples)
    lacking = sorted({"tokens", "mask", "argmax", "states"} - set(file.keys()))
    held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (safe_open is not a dict)
    if lacking or any(len(tensor) != rows for tensor in held.values()):
        problem = f"lacks {lacking[0]}" if lacking else f"does not hold {rows} rows"
        raise UserError(f"{folder / shard.file} {problem}.", "It is damaged or of another folder: capture it again.")
    return held


class FeatureStore:
    """Samples of a folder, ordered by id, mapped from disk: nothing is in memory until it is touched."""

    def __init__(self, folder: Path) -> None:
        index = read_index(folder)
        self._folder = folder
        self.contract = index.contract
        self._tensors: list[dict[str, Tensor]] = []
        placed: list[tuple[Entry, int]] = []
        for number, shard in enumerate(index.shards):
            self._tensors.append(_open_shard(folder, shard))
            placed += [(entry, number) for entry in shard.samples]
        if not placed:
            raise UserError(f"{folder} holds no samples.", "Run `draftwing capture` to its end first.")
        self._placed = sorted(placed, key=lambda pair: pair[0].id)

    def __len__(self) -> int:
        return len(self._placed)

    def __getitem__(self, number: int) -> Sample:
        entry, shard = self._placed[number]
        rows = slice(entry.start, entry.start + entry.length)
        held = self._tensors[shard]
        sample = Sample(entry.id, held["tokens"][rows], held["mask"][rows], held["argmax"][rows], held["states"][rows])
        remedy = f"The file was damaged after it was written: delete {self._folder} and capture again."
        _require_sound(sample, self.contract, remedy)
        if entry.digest is not None and entry.digest != _digest(sample):
            raise UserError(f"Sample {entry.id} in {self._folder} is not what was written.", remedy)
        return sample

    def __iter__(self) -> Iterator[Sample]:
        return (self[number] for number in range(len(self)))

    def lengths(self) -> list[int]:
        """Tokens of each sample."""
        return [entry.length for entry, _ in self._placed]

    def response_counts(self, vocab_size: int) -> Tensor:
        """How often each token id occurs in responses: counts [V]."""
        counts = torch.zeros(vocab_size, dtype=torch.int64)
        for held in self._tensors:
            counts += torch.bincount(held["tokens"][held["mask"].bool()].long(), minlength=vocab_size)
        return counts
