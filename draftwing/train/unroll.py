"""The training-time test: the drafter run on its own states for several steps along a text.

Shapes: R key rows, Q query rows, J steps, H drafter hidden, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwing.drafter.model import Drafter
from draftwing.drafter.vocabulary import VocabularyMap
from draftwing.ops.norm import rms_norm
from draftwing.ops.rope import rotation_table
from draftwing.target.load import Target
from draftwing.train.attention import chain_attention
from draftwing.train.batch import Batch
from draftwing.train.loss import soft_cross_entropy, teacher_probabilities


class Teacher:
    """The frozen parts of the target that training reads, in the arithmetic's dtype."""

    def __init__(self, target: Target, vocabulary: VocabularyMap, dtype: torch.dtype) -> None:
        weights = target.weights
        self.embedding_VH = weights.embedding.to(dtype)
        ids = vocabulary.target_ids_D.to(weights.head.device)
        self._head_DH = weights.head[ids].to(dtype)
        self._norm_H, self._eps = weights.final_norm.to(dtype), target.config.norm_eps

    @torch.no_grad()
    def probabilities(self, states_PH: Tensor) -> Tensor:
        """The target's distributions over the draft vocabulary [P, Vd]."""
        return teacher_probabilities(states_PH, lambda x: rms_norm(x, self._norm_H, self._eps), self._head_DH)


class Unroller:
    """Runs the chain of a batch; holds the rotation table."""

    def __init__(self, drafter: Drafter, embedding_VH: Tensor) -> None:
        self._drafter, self._embedding_VH = drafter, embedding_VH
        config = drafter.config
        cos_PD, sin_PD = rotation_table(config.rope, config.head_dim, config.max_context)
        self._cos_P1D, self._sin_P1D = cos_PD.to(embedding_VH)[:, None], sin_PD.to(embedding_VH)[:, None]

    def states(self, batch: Batch, depth: int) -> Iterator[Tensor]:
        """Yield the states [Q, H] after each step (before the drafter's final norm)."""
        drafter, position_Q = self._drafter, batch.position_R[batch.query_Q]
        fused_RH = drafter.fuse(batch.features_RF)
        mixed_RE = drafter.mix(F.embedding(batch.next_token_R, self._embedding_VH), fused_RH)
        keys, values = drafter.keys_values(mixed_RE, *self._rotation(batch.position_R))
        state_QH, mixed_QE = fused_RH[batch.query_Q], mixed_RE[batch.query_Q]
        own: list[tuple[Tensor, Tensor]] = []
        for step in range(depth):
            cos, sin = self._rotation(position_Q + step)
            if step:
                mixed_QE = drafter.mix(F.embedding(batch.token_JQ[step], self._embedding_VH), state_QH)
                own.append(drafter.keys_values(mixed_QE, cos, sin))
            queries = drafter.queries(mixed_QE, cos, sin)
            attended = [
                chain_attention(
                    queries[span.queries],
                    span.first,
                    keys[span.keys],
                    values[span.keys],
                    [(k[span.queries], v[span.queries]) for k, v in own],
                )
                for span in batch.spans
            ]
            state_QH = drafter.finish(state_QH, torch.cat(attended))
            yield state_QH

    def _rotation(self, position_R: Tensor) -> tuple[Tensor, Tensor]:
        # Rows past the text's end, which never count, may stand past the context.
        at_R = position_R.clamp(max=len(self._cos_P1D) - 1)
        return self._cos_P1D[at_R], self._sin_P1D[at_R]


@dataclass(frozen=True)
class StepSums:
    """Sums over a batch for each step: loss, rows that counted, rows whose greedy draft was the text's token."""

    loss_J: Tensor
    counted_J: Tensor
    right_J: Tensor


def chain_losses(unroller: Unroller, drafter: Drafter, batch: Batch, teacher_PV: Tensor, depth: int) -> StepSums:
    """Run the chain and sum the loss of each step; `loss_J` carries gradients."""
    losses, counts, rights = [], [], []
    for step, state_QH in enumerate(unroller.states(batch, depth)):
        rows = batch.counts_JQ[step]
        loss, chosen = soft_cross_entropy(
            drafter.norm(state_QH[rows]), drafter.lm_head.weight, teacher_PV, batch.learns_JQ[step][rows]
        )
        losses.append(loss)
        counts.append(rows.sum())
        rights.append((chosen == batch.drafts_right_JQ[step][rows]).sum())
    return StepSums(torch.stack(losses), torch.stack(counts), torch.stack(rights))
