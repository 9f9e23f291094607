"""A fresh drafter starts where the target ends: its head, its norm, states of unit size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from draftwing.drafter.initial import new_drafter, tap_scale
from draftwing.drafter.model import Drafter
from tests.drafter.small import small_config

CONFIG = small_config(hidden_size=20, taps=3)
SIZES = torch.tensor([0.3, 4.0, 90.0])


def fresh(head_width: int = 20, seed: int = 0) -> tuple[Drafter, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(9)
    head = torch.randn(CONFIG.draft_vocab_size, head_width, generator=generator)
    norm = torch.rand(head_width, generator=generator) + 0.5
    return new_drafter(CONFIG, head, norm, SIZES, seed), head, norm


def scaled_states(tokens: int) -> Tensor:
    """Taps [T, A, H] whose sizes differ three hundredfold."""
    return torch.randn(tokens, 3, 20, generator=torch.Generator().manual_seed(1)) * SIZES[:, None]


def size(x: Tensor) -> float:
    """Root mean square."""
    return float(x.detach().square().mean().sqrt())


def test_the_head_starts_as_the_targets_rows_and_final_norm() -> None:
    drafter, head, norm = fresh()
    assert torch.equal(drafter.lm_head.weight, head)
    assert torch.equal(drafter.norm.weight, norm)


def test_a_head_of_another_width_is_not_borrowed() -> None:
    drafter, _, _ = fresh(head_width=24)
    assert tuple(drafter.lm_head.weight.shape) == (CONFIG.draft_vocab_size, 20)
    assert torch.equal(drafter.norm.weight, torch.ones(20))


def test_fused_states_have_unit_size_whatever_the_size_of_each_tap() -> None:
    drafter, _, _ = fresh()
    assert size(drafter.fuse(scaled_states(400).flatten(1))) == pytest.approx(1.0, rel=0.1)


def test_every_tap_has_the_same_say_in_the_fused_state() -> None:
    drafter, _, _ = fresh()
    states = scaled_states(400)
    for tap in range(3):
        alone = torch.zeros_like(states)
        alone[:, tap] = states[:, tap]
        assert size(drafter.fuse(alone.flatten(1))) == pytest.approx(3**-0.5, rel=0.12)


def test_the_layer_starts_near_the_identity() -> None:
    drafter, _, _ = fresh()
    state = torch.randn(50, 20, generator=torch.Generator().manual_seed(2))
    attended = torch.randn(50, CONFIG.heads * CONFIG.head_dim, generator=torch.Generator().manual_seed(3))
    added = drafter.finish(state, attended) - state
    assert 0 < size(added) < 0.2 * size(state)


def test_the_seed_decides_the_weights() -> None:
    first, again, other = fresh(seed=1)[0], fresh(seed=1)[0], fresh(seed=2)[0]
    assert torch.equal(first.fc.weight, again.fc.weight)
    assert not torch.equal(first.fc.weight, other.fc.weight)


def test_tap_scale_is_the_size_of_the_typical_token() -> None:
    """The first token's states are often a hundred times as large: it must not set the scale."""
    states = scaled_states(401)
    states[0] *= 100
    assert tap_scale(states).tolist() == pytest.approx(SIZES.tolist(), rel=0.1)


def test_tap_scale_never_divides_by_zero() -> None:
    assert bool((tap_scale(torch.zeros(5, 3, 20)) > 0).all())
