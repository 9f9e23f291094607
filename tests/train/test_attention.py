"""Causal-plus-diagonal attention: equal to its definition, masked as drawn, and never T x T numbers large."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from draftwing.train import attention
from draftwing.train.attention import chain_attention, chain_attention_reference
from tests.train.watch import Largest

Pairs = list[tuple[Tensor, Tensor]]


def random_case(T: int, first: int, heads: int, kv_heads: int, steps: int) -> tuple[Tensor, Tensor, Tensor, Pairs]:
    """Queries of rows first..T-1, step-0 keys and values, and (keys, values) of `steps` later steps."""
    generator = torch.Generator().manual_seed(T + 10 * steps)

    def draw(rows: int, wide: int) -> Tensor:
        return torch.randn(rows, wide, 6, generator=generator, dtype=torch.float64).requires_grad_()

    n = T - first
    diagonals = [(draw(n, kv_heads), draw(n, kv_heads)) for _ in range(steps)]
    return draw(n, heads), draw(T, kv_heads), draw(T, kv_heads), diagonals


@pytest.mark.parametrize("steps", [0, 1, 2, 4])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 2), (6, 2), (3, 1)])
@pytest.mark.parametrize(("block", "first"), [(1, 0), (3, 2), (4, 0), (512, 3)])
def test_equals_the_definition_in_value_and_every_gradient(
    monkeypatch: pytest.MonkeyPatch, block: int, first: int, heads: int, kv_heads: int, steps: int
) -> None:
    monkeypatch.setattr(attention, "BLOCK", block)
    q, k, v, diagonals = random_case(11, first, heads, kv_heads, steps)
    leaves = [q, k, v, *(tensor for pair in diagonals for tensor in pair)]
    weight = torch.randn(11 - first, heads * 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    results = []
    for function in (chain_attention, chain_attention_reference):
        out = function(q, torch.arange(first, 11), k, v, diagonals)
        results.append((out, *torch.autograd.grad((out * weight).sum(), leaves)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_rows_past_the_last_query_are_seen_by_nobody() -> None:
    q, k, v, diagonals = random_case(9, 3, 4, 2, 2)
    spoiled = k.detach().clone()
    spoiled[7:] = float("nan")
    short = [(keys[:4], values[:4]) for keys, values in diagonals]
    out = chain_attention(q[:4], torch.arange(3, 7), spoiled, v, short)
    torch.testing.assert_close(out, chain_attention_reference(q[:4], torch.arange(3, 7), k, v, short))


@pytest.mark.parametrize("block", [1, 2, 512])
def test_the_mask_is_as_drawn(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """Queries of zeros see all they may see alike; each key's value marks a column of its own."""
    monkeypatch.setattr(attention, "BLOCK", block)
    marks = torch.eye(12)
    step = [(torch.zeros(2, 1, 12), marks[start + 1 : start + 3, None]) for start in (4, 8)]
    seen = chain_attention(torch.zeros(2, 1, 12), torch.tensor([1, 2]), torch.zeros(4, 1, 12), marks[:4, None], step)
    drawing = """
        1 1 0 0   0 1 0 0   0 1 0 0
        1 1 1 0   0 0 1 0   0 0 1 0
    """
    wanted = [[int(mark) for mark in line.split()] for line in drawing.strip().splitlines()]
    assert (seen > 0).int().tolist() == wanted
    torch.testing.assert_close(seen.sum(1), torch.ones(2))
    torch.testing.assert_close(seen[0, 0], seen[0, 9])


def long_case(T: int) -> tuple[Tensor, Tensor, Tensor, Pairs]:
    def draw() -> Tensor:
        return torch.randn(T, 1, 4, requires_grad=True)

    return draw(), draw(), draw(), [(draw(), draw()), (draw(), draw())]


def test_no_operation_forward_or_backward_makes_as_much_as_a_square_of_the_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    T, block = 2048, 64
    monkeypatch.setattr(attention, "BLOCK", block)
    q, k, v, diagonals = long_case(T)
    with Largest() as largest:
        chain_attention(q, torch.arange(len(q)), k, v, diagonals).sum().backward()
    assert q.grad is not None
    assert block * T <= largest.numel <= block * (T + 2)


def test_what_is_kept_for_the_backward_pass_grows_with_the_length_and_not_its_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attention, "BLOCK", 64)
    T = 2048
    q, k, v, diagonals = long_case(T)
    kept: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = chain_attention(q, torch.arange(len(q)), k, v, diagonals)
    # Views of one tensor share its storage.
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in kept}
    assert out.requires_grad
    assert sum(storages.values()) <= 8 * q.untyped_storage().nbytes()
