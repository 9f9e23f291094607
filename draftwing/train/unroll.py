"""The training-time test: the drafter run on its own states for several steps along a text.

Shapes: R key rows, Q query rows, J steps, H drafter hidden, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

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
from draftwing.train.loss import lesson, soft_cross_entropy, teacher_probabilities

LaterRows = Literal["all", "accepted"]


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
        self.drafter, self._embedding_VH = drafter, embedding_VH
        config = drafter.config
        cos_PD, sin_PD = rotation_table(config.rope, config.head_dim, config.max_context)
        self._cos_P1D, self._sin_P1D = cos_PD.to(embedding_VH)[:, None], sin_PD.to(embedding_VH)[:, None]

    def states(self, batch: Batch, depth: int) -> Iterator[Tensor]:
        """Yield the states [Q, H] of all query rows after each step (before the drafter's final norm)."""
        chain = Chain(self, batch)
        for _ in range(depth):
            yield chain.step()

    def embed(self, token_R: Tensor) -> Tensor:
        """The target's embeddings [R, H]."""
        return F.embedding(token_R, self._embedding_VH)

    def rotation(self, position_R: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin [R, 1, D]."""
        # Rows past the text's end, which never count, may stand past the context.
        at_R = position_R.clamp(max=len(self._cos_P1D) - 1)
        return self._cos_P1D[at_R], self._sin_P1D[at_R]


class Chain:
    """The chains of a batch on their way: one from each query row that is still kept.

    A chain sees step-0 keys, which are every row's, and its own later keys, which are nobody else's: so leaving
    chains out changes nothing for the others. `row_Q` are the query rows kept, rising.
    """

    def __init__(self, unroller: Unroller, batch: Batch) -> None:
        self._unroller, self._batch, self._step = unroller, batch, 0
        drafter = unroller.drafter
        fused_RH = drafter.fuse(batch.features_RF)
        mixed_RE = drafter.mix(unroller.embed(batch.next_token_R), fused_RH)
        self._keys, self._values = drafter.keys_values(mixed_RE, *unroller.rotation(batch.position_R))
        self._state_QH, self._mixed_QE = fused_RH[batch.query_Q], mixed_RE[batch.query_Q]
        self._own: list[tuple[Tensor, Tensor]] = []
        self.row_Q = torch.arange(len(batch.query_Q), device=batch.query_Q.device)

    def keep(self, kept_Q: Tensor) -> None:
        """Go on with the rows where `kept_Q` [Q] is true."""
        self.row_Q, self._state_QH = self.row_Q[kept_Q], self._state_QH[kept_Q]
        self._own = [(keys[kept_Q], values[kept_Q]) for keys, values in self._own]

    def step(self) -> Tensor:
        """Take the next step; returns the states [Q, H] of the rows kept."""
        unroller, batch, drafter = self._unroller, self._batch, self._unroller.drafter
        position_Q = batch.position_R[batch.query_Q[self.row_Q]]
        cos, sin = unroller.rotation(position_Q + self._step)
        if self._step:
            self._mixed_QE = drafter.mix(unroller.embed(batch.token_JQ[self._step][self.row_Q]), self._state_QH)
            self._own.append(drafter.keys_values(self._mixed_QE, cos, sin))
        queries = drafter.queries(self._mixed_QE, cos, sin)
        # Where each conversation's queries end among the rows kept.
        ends = torch.tensor([span.queries.stop for span in batch.spans], device=self.row_Q.device)
        bounds = [0, *torch.searchsorted(self.row_Q, ends).tolist()]
        attended = [
            chain_attention(
                queries[start:end],
                position_Q[start:end],
                self._keys[span.keys],
                self._values[span.keys],
                [(k[start:end], v[start:end]) for k, v in self._own],
            )
            for span, start, end in zip(batch.spans, bounds[:-1], bounds[1:], strict=True)
        ]
        self._state_QH = drafter.finish(self._state_QH, torch.cat(attended))
        self._step += 1
        return self._state_QH


@dataclass(frozen=True)
class StepSums:
    """Over a batch, for each step: loss, rows that counted, rows whose greedy draft was the text's token.

    `weighted` is the sum of the losses, each times its step's weight, and carries gradients.
    """

    weighted: Tensor
    loss_J: Tensor
    counted_J: Tensor
    right_J: Tensor


def chain_losses(
    unroller: Unroller, batch: Batch, teacher_PV: Tensor, weights_J: list[float], later_rows: LaterRows = "all"
) -> StepSums:
    """Run the chain, a step for each weight, and sum the loss of each step over the rows that count.

    With `later_rows` "accepted" a row goes on to the next step only when its draft was the text's own token: the
    rows that decoding reaches, since it throws the rest of a chain away at its first wrong draft.
    """
    with unroller.drafter.casting_once(teacher_PV.dtype):
        chain, drafter = Chain(unroller, batch), unroller.drafter
        learned = lesson(teacher_PV, drafter.lm_head.cast(teacher_PV.dtype))
        losses, counts, rights = [], [], []
        for step, weight in enumerate(weights_J):
            state_QH = chain.step()
            counts_Q = batch.counts_JQ[step][chain.row_Q]
            row_C = chain.row_Q[counts_Q]
            learns_C = batch.learns_JQ[step][row_C]
            loss, chosen_C = soft_cross_entropy(drafter.norm(state_QH[counts_Q]), learned, learns_C, weight)
            right_C = chosen_C == batch.drafts_right_JQ[step][row_C]
            losses.append(loss)
            counts.append(counts_Q.sum())
            rights.append(right_C.sum())
            if later_rows == "accepted":
                chain.keep(counts_Q.masked_scatter(counts_Q, right_C))
    weighted_J = torch.stack(losses)
    loss_J = weighted_J.detach() / torch.tensor(weights_J, dtype=weighted_J.dtype, device=weighted_J.device)
    return StepSums(weighted_J.sum(), loss_J, torch.stack(counts), torch.stack(rights))
