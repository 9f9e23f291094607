"""Soft cross-entropy against the target over the draft vocabulary, in chunks of rows. Pure.

Shapes: R counted rows, P rows with a teacher, H hidden, V draft vocabulary (only here).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CHUNK = 512


class _SoftCrossEntropy(torch.autograd.Function):
    """Sum over rows of -sum_v p_v log q_v, q = softmax(x @ head^T).

    Loss and gradients are made chunk by chunk in the forward pass, so that logits of more than CHUNK rows
    are never held; the backward pass only scales them.
    """

    @staticmethod
    def forward(
        ctx: Any, x_RH: Tensor, head_VH: Tensor, teacher_PV: Tensor, learns_R: Tensor, chosen_R: Tensor
    ) -> Tensor:
        head = head_VH.to(x_RH.dtype)
        grad_x, grad_head = torch.empty_like(x_RH), torch.zeros_like(head_VH)
        total = torch.zeros((), dtype=torch.float64, device=x_RH.device)
        for start in range(0, len(x_RH), CHUNK):
            rows = slice(start, start + CHUNK)
            log_q = (x_RH[rows] @ head.T).float().log_softmax(-1)
            p = teacher_PV[learns_R[rows]].float()
            total -= (p * log_q).sum(dtype=torch.float64)
            chosen_R[rows] = log_q.argmax(-1)
            # d loss / d logits = q * sum(p) - p, and p sums to 1 up to its rounding.
            slope = log_q.exp_().mul_(p.sum(-1, keepdim=True)).sub_(p).to(x_RH.dtype)
            grad_x[rows] = slope @ head
            grad_head += (slope.T @ x_RH[rows]).to(grad_head.dtype)
        ctx.save_for_backward(grad_x, grad_head)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad_x, grad_head = ctx.saved_tensors
        scale = grads[0]
        return grad_x * scale.to(grad_x.dtype), grad_head * scale.to(grad_head.dtype), None, None, None


def soft_cross_entropy(x_RH: Tensor, head_VH: Tensor, teacher_PV: Tensor, learns_R: Tensor) -> tuple[Tensor, Tensor]:
    """Return (summed loss, the draft ids that the rows would choose [R]).

    x_RH are normed states; row r learns the distribution teacher_PV[learns_R[r]] over the draft vocabulary.
    """
    chosen_R = torch.empty(len(x_RH), dtype=torch.long, device=x_RH.device)
    loss: Tensor = _SoftCrossEntropy.apply(x_RH, head_VH, teacher_PV, learns_R, chosen_R)
    return loss, chosen_R


def soft_cross_entropy_reference(
    x_RH: Tensor, head_VH: Tensor, teacher_PV: Tensor, learns_R: Tensor
) -> tuple[Tensor, Tensor]:
    """The same in two lines, all logits at once."""
    log_q_RV = (x_RH @ head_VH.T).log_softmax(-1)
    return -(teacher_PV[learns_R] * log_q_RV).sum(), log_q_RV.argmax(-1)


def teacher_probabilities(states_RH: Tensor, norm: Callable[[Tensor], Tensor], head_VH: Tensor) -> Tensor:
    """The target's distribution over the draft vocabulary [R, V] in the states' dtype.

    states_RH are B_n (before the final norm); head_VH are the target's head rows of the draft vocabulary.
    """
    out = states_RH.new_empty(len(states_RH), len(head_VH))
    for start in range(0, len(states_RH), CHUNK):
        rows = slice(start, start + CHUNK)
        out[rows] = (norm(states_RH[rows]) @ head_VH.T).float().softmax(-1).to(out.dtype)
    return out
