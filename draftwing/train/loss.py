"""Soft cross-entropy against the target over the draft vocabulary. Pure.

A row's loss is -sum_v p_v log q_v, with q = softmax(x @ head^T). Written as two terms,

    mass * log sum_v exp(z_v)  -  x . pull          z = x @ head^T,  mass = sum_v p_v,  pull = p @ head

it needs the teacher's p only in `pull` and `mass`, once a batch and not once for every row and step that learns p;
what is left over the vocabulary is one softmax, and two products with it for the gradients.

Shapes: R counted rows, P rows with a teacher, H hidden, V draft vocabulary (only here).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftwing.ops.sampling import argmax

CHUNK = 2048


@dataclass(frozen=True)
class Lesson:
    """What rows may learn and the head that learns it; `pull_PH` carries gradients to the head."""

    head_VH: Tensor
    pull_PH: Tensor
    mass_P: Tensor


def lesson(teacher_PV: Tensor, head_VH: Tensor) -> Lesson:
    """Prepare distributions over the draft vocabulary, once for all the rows and steps that learn them."""
    head = head_VH.to(teacher_PV.dtype)
    return Lesson(head, teacher_PV @ head, teacher_PV.sum(-1, dtype=_wide(head)))


class _LogSums(torch.autograd.Function):
    """Sum over rows of weight_r * log sum_v exp(z_rv); each row's largest logit is noted in `chosen_R`.

    Value and gradients are made chunk by chunk in the forward pass, so that logits of more than CHUNK rows are never
    held; the backward pass only scales them.
    """

    @staticmethod
    def forward(ctx: Any, x_RH: Tensor, head_VH: Tensor, weight_R: Tensor, chosen_R: Tensor) -> Tensor:
        wide = _wide(x_RH)
        grad_x, grad_head = torch.empty_like(x_RH), None
        total = torch.zeros((), dtype=torch.float64, device=x_RH.device)
        for start in range(0, len(x_RH), CHUNK):
            rows = slice(start, start + CHUNK)
            x, weight_R1 = x_RH[rows], weight_R[rows, None]
            z = x @ head_VH.T
            best_R1 = argmax(z)[:, None]
            best_z = z.gather(-1, best_R1).to(wide)
            q = z.softmax(-1)
            # z_v - log q_v is the same for every v; the largest q has the least relative rounding.
            total += ((best_z - q.gather(-1, best_R1).to(wide).log()) * weight_R1).sum(dtype=torch.float64)
            chosen_R[rows] = best_R1[:, 0]
            weight_R1 = weight_R1.to(x.dtype)
            grad_x[rows] = (q @ head_VH).mul_(weight_R1)
            slope_VH = q.T @ (x * weight_R1)
            grad_head = slope_VH if grad_head is None else grad_head.add_(slope_VH)
        ctx.save_for_backward(grad_x, torch.zeros_like(head_VH) if grad_head is None else grad_head)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        grad_x, grad_head = ctx.saved_tensors
        if grads[0] != 1:
            scale = grads[0].to(grad_x.dtype)
            grad_x, grad_head = grad_x * scale, grad_head * scale
        return grad_x, grad_head, None, None


def soft_cross_entropy(x_RH: Tensor, lesson: Lesson, learns_R: Tensor, weight: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return (loss summed over rows and times `weight`, the draft ids that the rows would choose [R]).

    x_RH are normed states; row r learns the distribution number learns_R[r] of the lesson.
    """
    chosen_R = torch.empty(len(x_RH), dtype=torch.long, device=x_RH.device)
    mass_R = lesson.mass_P[learns_R] * weight
    log_sums: Tensor = _LogSums.apply(x_RH, lesson.head_VH, mass_R, chosen_R)
    wide = _wide(x_RH)
    expected_R = (x_RH.to(wide) * lesson.pull_PH.index_select(0, learns_R).to(wide)).sum(-1)
    return log_sums - weight * expected_R.sum(dtype=torch.float64), chosen_R


def soft_cross_entropy_reference(
    x_RH: Tensor, head_VH: Tensor, teacher_PV: Tensor, learns_R: Tensor
) -> tuple[Tensor, Tensor]:
    """The same, of weight 1, in two lines: all logits at once."""
    log_q_RV = (x_RH @ head_VH.T).log_softmax(-1)
    return -(teacher_PV[learns_R] * log_q_RV).sum(), log_q_RV.argmax(-1)


def teacher_probabilities(states_RH: Tensor, norm: Callable[[Tensor], Tensor], head_VH: Tensor) -> Tensor:
    """The target's distribution over the draft vocabulary [R, V] in the states' dtype.

    states_RH are B_n (before the final norm); head_VH are the target's head rows of the draft vocabulary.
    """
    out = states_RH.new_empty(len(states_RH), len(head_VH))
    for start in range(0, len(states_RH), CHUNK):
        rows = slice(start, start + CHUNK)
        out[rows] = (norm(states_RH[rows]) @ head_VH.T).softmax(-1)
    return out


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
