"""Soft cross-entropy in chunks: equal to its two lines, and never logits of more than a chunk."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from draftwing.ops.norm import rms_norm
from draftwing.train import loss
from draftwing.train.loss import lesson, soft_cross_entropy, soft_cross_entropy_reference, teacher_probabilities
from tests.train.watch import Largest

H, V, P = 5, 23, 9


def ours(x: Tensor, head: Tensor, teacher: Tensor, learns: Tensor, weight: float = 1.0) -> tuple[Tensor, Tensor]:
    """The loss in the reference's words."""
    return soft_cross_entropy(x, lesson(teacher, head), learns, weight)


def case(rows: int, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows, a head, a teacher whose rows sum to `scale`, and which teacher row each row learns: repeated, unordered."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, H, generator=generator, dtype=torch.float64).requires_grad_()
    head = torch.randn(V, H, generator=generator, dtype=torch.float64).requires_grad_()
    teacher = scale * torch.randn(P, V, generator=generator, dtype=torch.float64).softmax(-1)
    return x, head, teacher, torch.randint(P, (rows,), generator=generator)


@pytest.mark.parametrize("chunk", [1, 4, 512])
@pytest.mark.parametrize("rows", [1, 3, 4, 5, 8, 9])
@pytest.mark.parametrize("scale", [1.0, 0.9])
def test_equals_the_definition_in_value_choice_and_gradients(
    monkeypatch: pytest.MonkeyPatch, chunk: int, rows: int, scale: float
) -> None:
    """Also where the teacher's rows do not sum to 1, as its rounded probabilities do not."""
    monkeypatch.setattr(loss, "CHUNK", chunk)
    x, head, teacher, learns = case(rows, scale)
    results = []
    for function in (ours, soft_cross_entropy_reference):
        total, chosen = function(x, head, teacher, learns)
        # A factor on the loss must reach the gradients.
        results.append((total, *torch.autograd.grad(3 * total, (x, head)), chosen))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_gradients_are_those_of_small_changes() -> None:
    x, head, teacher, learns = case(6)
    (slope_x, slope_head) = torch.autograd.grad(ours(x, head, teacher, learns)[0], (x, head))
    for leaf, slope in ((x, slope_x), (head, slope_head)):
        direction = torch.randn(leaf.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        with torch.no_grad():
            ends = []
            for sign in (1, -1):
                moved = {"x": x, "head": head}
                moved["x" if leaf is x else "head"] = leaf + sign * 1e-3 * direction
                ends.append(soft_cross_entropy_reference(moved["x"], moved["head"], teacher, learns)[0])
        assert float((slope * direction).sum()) == pytest.approx(float((ends[0] - ends[1]) / 2e-3), rel=1e-4)


def test_each_row_learns_its_own_teacher_row() -> None:
    """Permuting rows together with what they learn changes nothing; permuting one alone does."""
    x, head, teacher, learns = case(7)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    total, chosen = ours(x, head, teacher, learns)
    together, moved = ours(x[order], head, teacher, learns[order])
    alone, _ = ours(x, head, teacher, learns[order])
    assert together.item() == pytest.approx(total.item(), rel=1e-6)
    assert torch.equal(moved, chosen[order])
    assert alone.item() != pytest.approx(total.item(), rel=1e-3)


def test_no_rows_are_no_loss() -> None:
    x, head, teacher, _ = case(3)
    total, chosen = ours(x[:0], head, teacher, torch.zeros(0, dtype=torch.long))
    total.backward()
    assert total.item() == 0
    assert len(chosen) == 0
    assert head.grad is not None
    assert not head.grad.any()


def test_logits_of_more_than_a_chunk_are_never_made_or_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, width, wide, chunk = 640, 8, 512, 64
    monkeypatch.setattr(loss, "CHUNK", chunk)
    x = torch.randn(rows, width, requires_grad=True)
    head = torch.randn(wide, width, requires_grad=True)
    teacher = torch.randn(rows, wide).softmax(-1)
    kept: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.numel())
        return tensor

    prepared = lesson(teacher, head.detach())
    learned = replace(prepared, head_VH=head, pull_PH=prepared.pull_PH.requires_grad_())
    with Largest() as largest, torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        soft_cross_entropy(x, learned, torch.arange(rows))[0].backward()
    assert largest.numel == chunk * wide
    assert max(kept) == x.numel() == rows * width


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_wide_weights_get_wide_gradients_under_narrow_states(dtype: torch.dtype) -> None:
    x, head, teacher, learns = case(40)
    exact = torch.autograd.grad(soft_cross_entropy_reference(x, head, teacher, learns)[0], (x, head))
    narrow, wide = x.detach().to(dtype).requires_grad_(), head.detach().float().requires_grad_()
    ours(narrow, wide, teacher.to(dtype), learns)[0].backward()
    assert narrow.grad is not None
    assert wide.grad is not None
    assert (narrow.grad.dtype, wide.grad.dtype) == (dtype, torch.float32)
    for mine, theirs in zip((narrow.grad, wide.grad), exact, strict=True):
        error = float((mine - theirs).norm() / theirs.norm())
        assert error < (0.03 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("chunk", [1, 4, 512])
def test_the_teacher_is_the_targets_softmax_over_the_draft_vocabulary(
    monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(loss, "CHUNK", chunk)
    generator = torch.Generator().manual_seed(0)
    states, head = torch.randn(7, H, generator=generator) * 9, torch.randn(V, H, generator=generator)
    weight = torch.rand(H, generator=generator) + 0.5
    wanted = (rms_norm(states, weight, 1e-5) @ head.T).softmax(-1)
    torch.testing.assert_close(teacher_probabilities(states, lambda x: rms_norm(x, weight, 1e-5), head), wanted)
