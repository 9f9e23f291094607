"""Attention over cached keys, for a few new tokens or for many.

Shapes: B sequences, M new tokens, T tokens of context (the new ones included), N query heads,
K key-value heads, G = N / K query heads to each of them, D head size.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

# Up to here query heads that share a key head become rows of one product. Beyond, a repeated mask costs more than
# repeated keys.
SHORT_QUERY = 64


def attention(q_BNMD: Tensor, k_BKTD: Tensor, v_BKTD: Tensor, mask_B1MT: Tensor | None) -> Tensor:
    """Softmax attention with grouped heads; returns [B, N, M, D]. Keys and values may be slices of a cache.

    `mask_B1MT` is added to the scores (0 or -inf; B or 1 wide); None lets every query see every key.
    """
    B, N, M, D = q_BNMD.shape
    K = k_BKTD.shape[1]
    if M > SHORT_QUERY:
        return F.scaled_dot_product_attention(q_BNMD, k_BKTD, v_BKTD, attn_mask=mask_B1MT, enable_gqa=True)
    # The fused kernel works on blocks of query rows: a row to a head would leave them empty, and read keys G times.
    G = N // K
    q_BKRD = q_BNMD.reshape(B, K, G * M, D)
    mask_B1RT = None if mask_B1MT is None else mask_B1MT.repeat(1, 1, G, 1)
    return F.scaled_dot_product_attention(q_BKRD, k_BKTD, v_BKTD, attn_mask=mask_B1RT).view(B, N, M, D)


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
