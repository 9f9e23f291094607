"""Conversations laid end to end without padding, with the indices that the unrolled steps need.

Shapes: R key rows and Q query rows of all conversations, P rows with a teacher, J steps, F = A * Ht feature
width, H target hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from draftwing.drafter.vocabulary import VocabularyMap
from draftwing.formats.features import Sample
from draftwing.train.align import chain_rows, counted


@dataclass(frozen=True)
class Span:
    """One conversation: its key rows, its query rows, and which of its own rows t the first query is."""

    keys: slice
    queries: slice
    first: int


@dataclass(frozen=True)
class Batch:
    """What one training step reads. See `align` for what counts and what is learned."""

    spans: tuple[Span, ...]
    features_RF: Tensor
    next_token_R: Tensor
    position_R: Tensor
    query_Q: Tensor
    token_JQ: Tensor
    counts_JQ: Tensor
    learns_JQ: Tensor
    drafts_right_JQ: Tensor
    teacher_states_PH: Tensor

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        """The same on a device, states in the arithmetic's dtype."""
        moved = {}
        for name, value in self.__dict__.items():
            if isinstance(value, Tensor):
                moved[name] = value.to(device, dtype if value.is_floating_point() else value.dtype)
        return Batch(spans=self.spans, **moved)


def make_batch(samples: list[Sample], vocabulary: VocabularyMap, depth: int) -> Batch | None:
    """Lay samples end to end; None when none of them has a row that counts.

    `drafts_right_JQ` is the draft id that would be right: that of the text's own token, -1 where there is none.
    """
    member_V, draft_ids_V = vocabulary.member_V, vocabulary.draft_ids_V
    spans, parts, keys, queries, teachers = [], [], 0, 0, 0
    for sample in samples:
        rows = chain_rows(sample.mask_T)
        if not rows:
            continue
        tokens_T, T = sample.tokens_T.long(), len(sample.tokens_T)
        t_Q = torch.tensor(rows)
        ahead_JQ = t_Q + torch.arange(depth)[:, None]
        # Rows past the text's end never count; they read its last entries.
        last_teacher = min(rows.stop + depth - 1, T - 1)
        parts.append(
            {
                "features_RF": sample.states_TSH[: rows.stop, :-1].flatten(1),
                "next_token_R": tokens_T[1 : rows.stop + 1],
                "position_R": torch.arange(rows.stop),
                "query_Q": t_Q + keys,
                "token_JQ": tokens_T[(ahead_JQ + 1).clamp(max=T - 1)],
                "counts_JQ": torch.stack(
                    [counted(sample.mask_T, sample.argmax_T, member_V, rows, step) for step in range(depth)]
                ),
                "learns_JQ": (ahead_JQ + 1).clamp(max=last_teacher) - rows.start - 1 + teachers,
                "drafts_right_JQ": draft_ids_V[tokens_T[(ahead_JQ + 2).clamp(max=T - 1)]].masked_fill(
                    ahead_JQ + 2 >= T, -1
                ),
                "teacher_states_PH": sample.states_TSH[rows.start + 1 : last_teacher + 1, -1],
            }
        )
        spans.append(Span(slice(keys, keys + rows.stop), slice(queries, queries + len(rows)), rows.start))
        keys, queries, teachers = keys + rows.stop, queries + len(rows), teachers + last_teacher - rows.start
    if not spans:
        return None
    joined = {name: torch.cat([part[name] for part in parts], -1 if name.endswith("JQ") else 0) for name in parts[0]}
    return Batch(spans=tuple(spans), **joined)


def plan(lengths: list[int], batch_tokens: int, seed: int) -> list[list[int]]:
    """A shuffled pass over samples, cut into batches of about `batch_tokens` tokens: sample numbers of each."""
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed)).tolist()
    batches: list[list[int]] = [[]]
    held = 0
    for number in order:
        if batches[-1] and held + lengths[number] > batch_tokens:
            batches.append([])
            held = 0
        batches[-1].append(number)
        held += lengths[number]
    return batches
