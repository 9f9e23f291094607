"""The torch backend: one lean decoder for the Llama, Mistral, Qwen2 and Qwen3 families.

Shapes: B sequences, M new tokens, T context with the new tokens, H hidden, N query heads, K key-value
heads, D head size, V vocabulary, A taps.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from draftwing.ops.attention import attention
from draftwing.ops.norm import rms_norm
from draftwing.ops.rope import rotate, rotation_table
from draftwing.target.backend import Forward, Rows
from draftwing.target.cache import Cache
from draftwing.target.config import TargetConfig, require_taps
from draftwing.target.weights import LayerWeights, TargetWeights


class Decoder:
    """A frozen target with its cache. Implements `target.backend.Backend`."""

    def __init__(self, config: TargetConfig, weights: TargetWeights, slots: int, capacity: int) -> None:
        self.config = config
        self.weights = weights
        head = weights.head
        self.cache = Cache(config.layers, slots, config.kv_heads, capacity, config.head_dim, head.dtype, head.device)
        cos_PD, sin_PD = rotation_table(config.rope, config.head_dim, capacity)
        # One rotation serves the query and key heads of a row: they lie side by side in the fused product.
        self._cos_P1D = cos_PD.to(head)[:, None]
        self._sin_P1D = sin_PD.to(head)[:, None]

    @torch.inference_mode()
    def forward(
        self,
        tokens_BM: Tensor,
        slots: range,
        *,
        taps: tuple[int, ...] = (),
        logits: Rows = "all",
        positions_M: Tensor | None = None,
        visible_MM: Tensor | None = None,
    ) -> Forward:
        """See `target.backend.Backend.forward`."""
        B, M = tokens_BM.shape
        if len(slots) != B:
            raise ValueError(f"{B} sequences for {len(slots)} slots")
        if taps:
            require_taps(taps, self.config.layers)
        self.cache.require_room(slots, M)
        starts = self.cache.lengths[slots.start : slots.stop]
        cos, sin = self._rotation(starts, M, positions_M)
        mask_B1MT = _mask(starts, M, visible_MM, self.weights.head)
        hidden = self.embed(tokens_BM)
        tapped = hidden.new_empty(B, M, len(taps), hidden.shape[-1]) if taps else None
        for index, layer in enumerate(self.weights.layers):
            if tapped is not None and index in taps:
                tapped[:, :, taps.index(index)] = hidden
            hidden += self._attend(index, layer, hidden, slots, starts, cos, sin, mask_B1MT)
            hidden += self._mlp(layer, hidden)
        if tapped is not None and self.config.layers in taps:
            tapped[:, :, taps.index(self.config.layers)] = hidden
        for slot, start in zip(slots, starts, strict=True):
            self.cache.lengths[slot] = start + M
        return Forward(self._logits(hidden, logits), tapped)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embedding rows: boundary B_0."""
        return F.embedding(tokens, self.weights.embedding)

    def _rotation(self, starts: list[int], M: int, positions_M: Tensor | None) -> tuple[Tensor, Tensor]:
        """cos and sin [B or 1, M, 1, D] of the new rows."""
        if positions_M is None and len(starts) == 1:
            rows = slice(starts[0], starts[0] + M)
            return self._cos_P1D[rows][None], self._sin_P1D[rows][None]
        offsets_M = torch.arange(M) if positions_M is None else positions_M
        at_BM = torch.tensor(starts)[:, None] + offsets_M
        return self._cos_P1D[at_BM], self._sin_P1D[at_BM]

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        hidden: Tensor,
        slots: range,
        starts: list[int],
        cos: Tensor,
        sin: Tensor,
        mask_B1MT: Tensor | None,
    ) -> Tensor:
        B, M, _ = hidden.shape
        N, K, D = self.config.heads, self.config.kv_heads, self.config.head_dim
        eps = self.config.norm_eps
        normed = rms_norm(hidden, layer.attention_norm, eps)
        qkv_BMND = layer.qkv(normed).view(B, M, N + 2 * K, D)
        qk = qkv_BMND[:, :, : N + K]
        if layer.query_norm is not None and layer.key_norm is not None:
            qk = torch.cat(
                [rms_norm(qk[:, :, :N], layer.query_norm, eps), rms_norm(qk[:, :, N:], layer.key_norm, eps)], 2
            )
        qk = rotate(qk, cos, sin)
        self._append(index, slots, starts, qk[:, :, N:], qkv_BMND[:, :, N + K :])
        held, T = slice(slots.start, slots.stop), max(starts) + M
        keys, values = self.cache.keys_LSKCD[index, held, :, :T], self.cache.values_LSKCD[index, held, :, :T]
        mixed_BNMD = attention(qk[:, :, :N].transpose(1, 2), keys, values, mask_B1MT)
        return layer.output(mixed_BNMD.transpose(1, 2).reshape(B, M, N * D))

    def _append(self, index: int, slots: range, starts: list[int], keys_BMKD: Tensor, values_BMKD: Tensor) -> None:
        """Write the new entries behind the cached ones."""
        M = keys_BMKD.shape[1]
        stores = (
            self.cache.keys_LSKCD[index, slots.start : slots.stop],
            self.cache.values_LSKCD[index, slots.start : slots.stop],
        )
        for store_BKCD, new_BMKD in zip(stores, (keys_BMKD, values_BMKD), strict=True):
            if min(starts) == max(starts):
                store_BKCD[:, :, starts[0] : starts[0] + M] = new_BMKD.transpose(1, 2)
            else:
                at_BM = torch.tensor(starts)[:, None] + torch.arange(M)
                store_BKCD[torch.arange(len(starts))[:, None], :, at_BM] = new_BMKD

    def _mlp(self, layer: LayerWeights, hidden: Tensor) -> Tensor:
        gate_up = layer.gate_up(rms_norm(hidden, layer.mlp_norm, self.config.norm_eps))
        gate, up = gate_up.chunk(2, -1)
        return layer.down(F.silu(gate, inplace=True).mul_(up))

    def _logits(self, hidden_BMH: Tensor, rows: Rows) -> Tensor | None:
        if rows == "none":
            return None
        return self.head(hidden_BMH if rows == "all" else hidden_BMH[:, -1:])

    def head(self, hidden: Tensor) -> Tensor:
        """Logits of states at boundary B_n (before the final norm)."""
        return self.weights.logits(rms_norm(hidden, self.weights.final_norm, self.config.norm_eps))


def _mask(starts: list[int], M: int, visible_MM: Tensor | None, like: Tensor) -> Tensor | None:
    """Additive mask [B, 1, M, T]; None when every row sees every entry.

    Row i of a sequence that held s tokens sees entries 0..s-1, and new entry s + j where visible[i, j]:

        entry      0 .. s-1 | s   s+1  s+2 | up to T-1 (longer neighbours)
        row 0      yes      | yes  -    -  |  -
        row 1      yes      | yes  yes  -  |  -
    """
    if M == 1 and min(starts) == max(starts):
        return None
    start_B11 = torch.tensor(starts, device=like.device)[:, None, None]
    entry_T = torch.arange(max(starts) + M, device=like.device)
    if visible_MM is None:
        hidden_BMT = entry_T > start_B11 + torch.arange(M, device=like.device)[:, None]
    else:
        hidden_BMT = (entry_T >= start_B11).expand(-1, M, -1).clone()
        for row, start in enumerate(starts):
            hidden_BMT[row, :, start : start + M] = ~visible_MM
    mask = torch.zeros(hidden_BMT.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(hidden_BMT, float("-inf"))[:, None]
