"""The schedule's shape, and which optimiser moves which weight."""

from __future__ import annotations

import copy
from itertools import pairwise

import pytest
import torch

from draftwing.train.optimizer import Optimizer, schedule
from tests.drafter.small import random_drafter, small_config


@pytest.mark.parametrize(
    ("share", "scale"),
    [(0.0, 0.0), (0.05, 0.5), (0.1, 1.0), (0.55, 0.51), (1.0, 0.02)],
    ids=["start", "half of the warm-up", "peak", "half of the cosine", "end"],
)
def test_schedule_warms_up_and_falls_to_a_fiftieth(share: float, scale: float) -> None:
    assert schedule(share, warmup=0.1) == pytest.approx(scale)


def test_a_schedule_without_warm_up_starts_at_its_peak() -> None:
    assert schedule(0.0, warmup=0.0) == 1.0


def test_schedule_rises_in_equal_steps_then_falls_without_a_jump() -> None:
    scales = [schedule(number / 1000, warmup=0.1) for number in range(1001)]
    steps = [after - before for before, after in pairwise(scales)]
    assert steps[:100] == pytest.approx([0.01] * 100)
    assert all(-0.005 < step < 0 for step in steps[100:])


def fresh(**changes: float) -> tuple[torch.nn.Module, Optimizer]:
    drafter = random_drafter(small_config())
    rates = {"muon_lr": 0.1, "adam_lr": 0.01, "weight_decay": 0.0, "warmup": 0.5, **changes}
    return drafter, Optimizer(drafter, **rates)


def moved(drafter: torch.nn.Module, optimizer: Optimizer, share: float, seed: int = 0) -> dict[str, float]:
    """How far the largest entry of each weight goes under a random gradient."""
    generator = torch.Generator().manual_seed(seed)
    before = {name: weight.detach().clone() for name, weight in drafter.named_parameters()}
    for weight in drafter.parameters():
        weight.grad = torch.randn(weight.shape, generator=generator)
    optimizer.step(share)
    return {name: float((weight.detach() - before[name]).abs().max()) for name, weight in drafter.named_parameters()}


def test_muon_moves_the_layers_matrices_and_adam_the_head_and_the_norms() -> None:
    """With one rate at zero, the other optimiser's weights are all that move, and none is forgotten."""
    by_muon = {name for name, way in moved(*fresh(adam_lr=0.0), share=0.5).items() if way}
    by_adam = {name for name, way in moved(*fresh(muon_lr=0.0), share=0.5).items() if way}
    names = {name for name, _ in fresh()[0].named_parameters()}
    assert by_adam == {name for name in names if "norm" in name} | {"lm_head.weight"}
    assert by_muon == names - by_adam


def test_both_follow_the_schedule() -> None:
    """Half way up the warm-up a first step goes half as far."""
    peak, half = moved(*fresh(), share=0.5), moved(*fresh(), share=0.25)
    for name, way in peak.items():
        assert half[name] == pytest.approx(way / 2, rel=0.02), name


def test_a_step_clears_the_gradients() -> None:
    drafter, optimizer = fresh()
    moved(drafter, optimizer, 0.5)
    assert all(weight.grad is None for weight in drafter.parameters())


def test_state_round_trips() -> None:
    """Momentum and moments taken up elsewhere give the same next step; without them it is another one."""
    drafter, optimizer = fresh()
    moved(drafter, optimizer, 0.5)
    weights, state = copy.deepcopy(drafter.state_dict()), copy.deepcopy(optimizer.state_dict())
    ends = [moved(drafter, optimizer, 0.7, seed=1)]
    for take in (True, False):
        other, taken = fresh()
        other.load_state_dict(weights)
        if take:
            taken.load_state_dict(state)
        ends.append(moved(other, taken, 0.7, seed=1))
    assert ends[1] == ends[0]
    assert ends[2]["fc.weight"] != ends[0]["fc.weight"]
    assert ends[2]["lm_head.weight"] != ends[0]["lm_head.weight"]
