"""Attention over cached keys, for a few new tokens or for many.

Shapes: B sequences, M new tokens, T tokens of context (the new ones included), N query heads,
K key-value heads, G = N / K query heads to each of them, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Up to here two plain matrix products are quicker than the fused kernel, which is built for long queries.
SHORT_QUERY = 16
# Contexts are rounded up to this many entries and masked: oneDNN makes (and keeps) a kernel for every new shape, which
# takes time and memory at every new length.
CONTEXT_STEP = 64


def round_up(length: int, capacity: int) -> int:
    """The context length whose shapes are used for `length` live entries."""
    return min(-(-length // CONTEXT_STEP) * CONTEXT_STEP, capacity)


def attention(q_BNMD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, mask_B1MT: Tensor | None) -> Tensor:
    """Softmax attention with grouped heads; returns [B, N, M, D].

    `mask_B1MT` is added to the scores (0 or -inf; B or 1 wide); None lets every query see every key.
    """
    if q_BNMD.shape[2] > SHORT_QUERY:
        return F.scaled_dot_product_attention(q_BNMD, k_BKTD, v_BKTD, attn_mask=mask_B1MT, enable_gqa=True)
    B, N, M, D = q_BNMD.shape
    K = k_BKTD.shape[1]
    # The G heads that share a key head become rows of one product, so keys are read once.
    q_BKRD = q_BNMD.reshape(B * K, (N // K) * M, D)
    # A slice of the cache is strided; a batched product of strided bfloat16 costs more than a copy and a product.
    keys, values = k_BKTD.contiguous().flatten(0, 1), v_BKTD.contiguous().flatten(0, 1)
    scores = torch.bmm(q_BKRD, keys.transpose(-1, -2)).mul_(D**-0.5)
    if mask_B1MT is not None:
        scores.view(B, N, M, -1).add_(mask_B1MT)
    return torch.bmm(scores.softmax(-1), values).view(B, N, M, D)


def attention_reference(q_BNMD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, mask_B1MT: Tensor | None) -> Tensor:
    """The definition, head by head, in float64."""
    N, K, D = q_BNMD.shape[1], k_BKTD.shape[1], q_BNMD.shape[-1]
    out = []
    for n in range(N):
        k, v = k_BKTD[:, n * K // N].double(), v_BKTD[:, n * K // N].double()
        scores = q_BNMD[:, n].double() @ k.transpose(-1, -2) / D**0.5
        if mask_B1MT is not None:
            scores = scores + mask_B1MT[:, 0].double()
        out.append(scores.softmax(-1) @ v)
    return torch.stack(out, 1).to(q_BNMD.dtype)
