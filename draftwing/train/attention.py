"""Causal-plus-diagonal attention of the training-time test (EAGLE-3, section 3.2).

At step j, row t sees the step-0 keys of rows 0..t, which decoding recomputes from true features, and its own
keys of steps 1..j, which stand for the drafts of its chain:

              step-0 keys        step-1 keys   step-2 keys
    row       0   1   2   3      0 1 2 3       0 1 2 3
    1         x   x   .   .      . x . .       . x . .
    2         x   x   x   .      . . x .       . . x .

The diagonals cost one product of row with row each. The causal part is computed over blocks of rows, and a
block's scores are computed again in the backward pass, so no step ever holds T x T numbers.

Shapes of one conversation: T rows with step-0 keys, n query rows (any of the T, rising: see `unroll`), J later
steps, N query heads, K key-value heads, G = N / K, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

BLOCK = 512


def chain_attention(
    q_nND: Tensor, row_n: Tensor, k_TKD: Tensor, v_TKD: Tensor, diagonals: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """Attend from rows `row_n`; `diagonals`: (keys, values) [n, K, D] of steps 1..j. Returns [n, N * D]."""
    out = []
    for start in range(0, len(q_nND), BLOCK):
        rows = slice(start, start + BLOCK)
        end = int(row_n[rows][-1]) + 1
        parts = [tensor[rows] for pair in diagonals for tensor in pair]
        out.append(checkpoint(_block, q_nND[rows], row_n[rows], k_TKD[:end], v_TKD[:end], *parts, use_reentrant=False))
    return torch.cat(out) if out else q_nND.flatten(1)


def _block(q_nND: Tensor, row_n: Tensor, k_TKD: Tensor, v_TKD: Tensor, *parts: Tensor) -> Tensor:
    n, N, D = q_nND.shape
    T, K, _ = k_TKD.shape
    q_KGnD = (q_nND * D**-0.5).view(n, K, N // K, D).permute(1, 2, 0, 3)
    causal_KGnT = (q_KGnD.reshape(K, -1, D) @ k_TKD.permute(1, 2, 0)).view(K, N // K, n, T)
    hidden_nT = torch.arange(T, device=row_n.device) > row_n[:, None]
    causal_KGnT = causal_KGnT.masked_fill(hidden_nT, float("-inf"))
    keys, values = parts[0::2], parts[1::2]
    diagonal = [(q_KGnD * k_nKD.transpose(0, 1)[:, None]).sum(-1, keepdim=True) for k_nKD in keys]
    weights_KGnS = torch.cat([causal_KGnT, *diagonal], -1).softmax(-1)
    out_KGnD = (weights_KGnS[..., :T].reshape(K, -1, T) @ v_TKD.transpose(0, 1)).view(K, N // K, n, D)
    for step, v_nKD in enumerate(values):
        out_KGnD = out_KGnD + weights_KGnS[..., T + step, None] * v_nKD.transpose(0, 1)[:, None]
    return out_KGnD.permute(2, 0, 1, 3).reshape(n, N * D)


def chain_attention_reference(
    q_nND: Tensor, row_n: Tensor, k_TKD: Tensor, v_TKD: Tensor, diagonals: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """Row by row and head by head, keys gathered as the drawing says."""
    n, N, D = q_nND.shape
    K = k_TKD.shape[1]
    out = q_nND.new_zeros(n, N, D)
    for row, t in enumerate(row_n.tolist()):
        for head in range(N):
            kv = head * K // N
            keys = torch.stack([*k_TKD[: t + 1, kv], *(k_nKD[row, kv] for k_nKD, _ in diagonals)])
            values = torch.stack([*v_TKD[: t + 1, kv], *(v_nKD[row, kv] for _, v_nKD in diagonals)])
            out[row, head] = (keys @ q_nND[row, head] / D**0.5).softmax(0) @ values
    return out.flatten(1)
