"""Chain drafting with the drafter's own cache.

Row t of the drafter pairs the target's features at token t with token t + 1 and stands at position t. After a
verify the rows of committed tokens are computed from the target's features (the refeed), over whatever the chain
had written there; the last of them yields the first draft. Further drafts feed the drafter's own state back:

    cache index   0 .. t       | t+1        t+2
    row           from features| draft 2's  draft 3's      (overwritten by the next refeed)

Shapes: M rows, F = A * Ht features, H hidden, N query heads, K key-value heads, D head size, C capacity.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from draftwing.drafter.checkpoint import LoadedDrafter
from draftwing.ops.attention import attention
from draftwing.ops.rope import rotation_table
from draftwing.ops.sampling import argmax

REFEED_ROWS = 512


class Proposer:
    """A drafter at work on one sequence."""

    def __init__(self, drafter: LoadedDrafter, embed: Callable[[Tensor], Tensor], capacity: int) -> None:
        self._model, self._embed = drafter.model, embed
        weight, config = drafter.model.fc.weight, drafter.model.config
        self._target_ids_D = drafter.vocabulary.target_ids_D.to(weight.device)
        self._keys_1KCD = torch.zeros(
            1, config.kv_heads, capacity, config.head_dim, dtype=weight.dtype, device=weight.device
        )
        self._values_1KCD = torch.zeros_like(self._keys_1KCD)
        cos_PD, sin_PD = rotation_table(config.rope, config.head_dim, capacity)
        self._cos_P1D, self._sin_P1D = cos_PD.to(weight)[:, None], sin_PD.to(weight)[:, None]
        # Zeros, then -inf: the mask of any row is a window of this (see `_mask`).
        self._window = self._cos_P1D.new_zeros(2 * capacity)
        self._window[capacity:] = float("-inf")
        self.length = 0

    def reset(self) -> None:
        """Forget the sequence."""
        self.length = 0

    @torch.inference_mode()
    def refeed(self, features_MF: Tensor, next_tokens_M: Tensor) -> Tensor:
        """Append rows from the target's features; returns the last row's state [1, H]."""
        for start in range(0, len(next_tokens_M), REFEED_ROWS):
            rows = slice(start, start + REFEED_ROWS)
            state_MH = self._run(
                self._model.fuse(features_MF[rows].to(self._cos_P1D.dtype)), next_tokens_M[rows], self.length
            )
            self.length += len(state_MH)
        return state_MH[-1:]

    @torch.inference_mode()
    def propose(self, features_MF: Tensor, next_tokens_M: Tensor, num_steps: int) -> list[int]:
        """Refeed, then draft `num_steps` tokens greedily; returns target token ids."""
        state_1H = self.refeed(features_MF, next_tokens_M)
        drafts = [self._choose(state_1H)]
        for step in range(1, num_steps):
            state_1H = self._run(state_1H, drafts[-1], self.length + step - 1)
            drafts.append(self._choose(state_1H))
        ids: list[int] = torch.cat(drafts).tolist()
        return ids

    def _choose(self, state_1H: Tensor) -> Tensor:
        return self._target_ids_D[argmax(self._model.logits(state_1H))]

    def _run(self, state_MH: Tensor, tokens_M: Tensor, at: int) -> Tensor:
        """One forward of M rows at positions at..at+M-1; returns the states after the layer."""
        model, M = self._model, len(state_MH)
        end = at + M
        cos, sin = self._cos_P1D[at:end], self._sin_P1D[at:end]
        mixed = model.mix(self._embed(tokens_M).to(state_MH.dtype), state_MH)
        keys_MKD, values_MKD = model.keys_values(mixed, cos, sin)
        self._keys_1KCD[0, :, at:end] = keys_MKD.transpose(0, 1)
        self._values_1KCD[0, :, at:end] = values_MKD.transpose(0, 1)
        queries_1NMD = model.queries(mixed, cos, sin).transpose(0, 1)[None]
        keys, values = self._keys_1KCD[:, :, :end], self._values_1KCD[:, :, :end]
        mixed_1NMD = attention(queries_1NMD, keys, values, self._mask(M, at))
        return model.finish(state_MH, mixed_1NMD[0].transpose(0, 1).reshape(M, -1))

    def _mask(self, M: int, at: int) -> Tensor | None:
        """Additive causal mask [1, 1, M, at + M]: row i sees entries 0..at + i."""
        if M == 1:
            return None
        first = len(self._window) // 2 - 1 - at
        rows = [self._window[first - row : first - row + at + M] for row in range(M)]
        return torch.stack(rows)[None, None]
