"""Held-out figures: what cycles would accept along texts that training never saw."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from draftwing.drafter.model import Drafter
from draftwing.drafter.vocabulary import VocabularyMap
from draftwing.formats.features import Sample
from draftwing.ops.sampling import argmax
from draftwing.train.align import response_runs
from draftwing.train.batch import make_batch
from draftwing.train.loss import CHUNK
from draftwing.train.unroll import Teacher, Unroller
from draftwing.train.walk import Cycles, walk


@dataclass(frozen=True)
class HeldOut:
    """Walked cycles, and beside them the means over positions that trainers usually print."""

    cycles: Cycles
    mean_over_positions: list[float]


@torch.no_grad()
def evaluate(
    drafter: Drafter,
    teacher: Teacher,
    vocabulary: VocabularyMap,
    samples: Iterable[Sample],
    steps: int,
    dtype: torch.dtype,
) -> HeldOut:
    """Walk every response of `samples` with up to `steps` drafts a cycle."""
    unroller = Unroller(drafter, teacher.embedding_VH)
    cycles = Cycles(steps)
    right_J, seen_J = torch.zeros(steps), torch.zeros(steps)
    for sample in samples:
        batch = make_batch([sample], vocabulary, steps)
        if batch is None:
            continue
        batch = batch.to(teacher.embedding_VH.device, dtype)
        chosen_JQ = torch.stack([_choices(drafter, state_QH) for state_QH in unroller.states(batch, steps)])
        right_JQ = (chosen_JQ == batch.drafts_right_JQ).cpu()
        for run in response_runs(sample.mask_T):
            rows = slice(run.start - batch.spans[0].first, run.stop - batch.spans[0].first)
            walk(right_JQ[:, rows], cycles)
            for step in range(min(steps, len(run))):
                right_J[step] += right_JQ[step, rows][: len(run) - step].sum()
                seen_J[step] += len(run) - step
    return HeldOut(cycles, (right_J / seen_J.clamp(min=1)).tolist())


def _choices(drafter: Drafter, state_QH: Tensor) -> Tensor:
    return torch.cat(
        [argmax(drafter.logits(state_QH[start : start + CHUNK])) for start in range(0, len(state_QH), CHUNK)]
    )
