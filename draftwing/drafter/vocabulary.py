"""The drafter's reduced vocabulary: which target tokens it can propose."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from draftwing.core.errors import UserError


@dataclass(frozen=True)
class VocabularyMap:
    """Draft id -> target id, rising. Vd draft ids, V target ids."""

    target_ids_D: Tensor
    vocab_size: int

    def __post_init__(self) -> None:
        ids = self.target_ids_D
        if len(ids) == 0 or bool((ids[1:] <= ids[:-1]).any()) or int(ids[0]) < 0 or int(ids[-1]) >= self.vocab_size:
            raise UserError(
                "The draft vocabulary does not map to distinct target tokens in rising order.",
                "The drafter's d2t is damaged, or holds absolute ids where offsets are expected.",
            )

    @property
    def offsets_D(self) -> Tensor:
        """d2t as checkpoints store it: target id minus draft id."""
        return self.target_ids_D - torch.arange(len(self.target_ids_D))

    @property
    def member_V(self) -> Tensor:
        """t2d as checkpoints store it: which target ids are in the map."""
        member = torch.zeros(self.vocab_size, dtype=torch.bool)
        member[self.target_ids_D] = True
        return member

    @property
    def draft_ids_V(self) -> Tensor:
        """Target id -> draft id, -1 where it has none."""
        ids = torch.full((self.vocab_size,), -1, dtype=torch.long)
        ids[self.target_ids_D] = torch.arange(len(self.target_ids_D))
        return ids

    @property
    def digest(self) -> str:
        """SHA-256 of the map."""
        return hashlib.sha256(self.target_ids_D.to(torch.int64).numpy().tobytes()).hexdigest()


def most_frequent(counts_V: Tensor, draft_vocab_size: int) -> VocabularyMap:
    """The most frequent target tokens of the training responses.

    Ties, and the padding when the data has fewer distinct tokens, go to the lower id.
    """
    V = len(counts_V)
    if not 0 < draft_vocab_size <= V:
        raise UserError(
            f"A draft vocabulary of {draft_vocab_size} does not fit a target of {V} tokens.", f"Choose 1 to {V}."
        )
    chosen = torch.argsort(counts_V, descending=True, stable=True)[:draft_vocab_size]
    return VocabularyMap(chosen.sort().values, V)


def from_offsets(offsets_D: Tensor, vocab_size: int) -> VocabularyMap:
    """The map of a checkpoint's d2t (offsets: target id = draft id + offset)."""
    return VocabularyMap(offsets_D.long() + torch.arange(len(offsets_D)), vocab_size)
