"""A drafter's tree holds what chains along its paths would hold, whatever was fed and asked before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwing.drafter.checkpoint import LoadedDrafter
from draftwing.engine.proposers.base import Ask
from draftwing.engine.proposers.drafter import COLD_ASKS, EDGES, MIDDLES, EagleProposer
from draftwing.engine.tree import ROOT, Candidates
from draftwing.target.load import Target
from tests.law.models import TAPS, random_drafter, tiny_target

TEXT = list(range(100, 130))


@pytest.fixture(scope="module")
def target(tiny_folder: Path) -> Target:
    return tiny_target(tiny_folder)[0]


@pytest.fixture(scope="module")
def drafter(target: Target) -> LoadedDrafter:
    return random_drafter(target.config, draft_vocab=100)


def ask(nodes: int, depth: int, width: int, rate: float = 0.0, worth: float = 0.0) -> Ask:
    return Ask(nodes, depth, width, lambda name, bucket, prior: prior, rate, worth)


def features(target: Target, tokens: list[int]) -> Tensor:
    """Of all tokens but the last [T - 1, F]."""
    out = target.decoder(1, 400).forward(torch.tensor([tokens[:-1]]), range(1), taps=TAPS)
    assert out.taps_BMAH is not None
    return out.taps_BMAH[0].flatten(1)


def fed(target: Target, drafter: LoadedDrafter, pieces: int = 1) -> EagleProposer:
    """A proposer that was told TEXT in so many pieces, and asked after each but the last."""
    proposer = EagleProposer(drafter, target.decoder(1, 400).embed, 400)
    proposer.begin(TEXT[0])
    states, at = features(target, TEXT), 1
    for piece in range(1, pieces + 1):
        end = 1 + (len(TEXT) - 1) * piece // pieces
        proposer.extend(TEXT[at:end], states[at - 1 : end - 1])
        at = end
        if piece < pieces:
            proposer.propose(ask(40, 4, 3))
    return proposer


def beliefs_along(target: Target, drafter: LoadedDrafter, path: list[int]) -> Tensor:
    """The drafter's softmax [Vd] behind TEXT and `path`, by feeding that path only."""
    proposer = fed(target, drafter)
    with torch.inference_mode():
        state = proposer._refeed()
        for step, token in enumerate(path):
            at = proposer.length + step
            turn = proposer._cos_P1D[at : at + 1], proposer._sin_P1D[at : at + 1]
            state = proposer._run(state, torch.tensor([token]), at, turn, None)
        return drafter.model.logits(state)[0].softmax(-1)


@pytest.mark.parametrize(("depth", "width"), [(1, 4), (3, 3), (4, 2), (5, 1), (3, 8)])
def test_every_path_has_the_softmax_of_its_own_chain(
    target: Target, drafter: LoadedDrafter, depth: int, width: int
) -> None:
    found = fed(target, drafter).propose(ask(200, depth, width))
    assert len(found.tokens) == width + (depth - 1) * width**2
    paths: list[list[int]] = []
    for token, parent in zip(found.tokens, found.parents, strict=True):
        paths.append([*(paths[parent] if parent != ROOT else []), token])
    for parent in {*found.parents}:
        children = [node for node, above in enumerate(found.parents) if above == parent]
        believed = beliefs_along(target, drafter, paths[parent] if parent != ROOT else [])
        best = believed.topk(width)
        assert [found.tokens[node] for node in children] == drafter.vocabulary.target_ids_D[best.indices].tolist()
        for node, value in zip(children, best.values.tolist(), strict=True):
            assert found.chances[node] == MIDDLES[sum(edge <= value for edge in EDGES)]


def test_the_likeliest_of_each_depth_are_expanded(target: Target, drafter: LoadedDrafter) -> None:
    """And no others: two of the four nodes of the second depth have children."""
    found = fed(target, drafter).propose(ask(200, 3, 2))
    reach = [0.0] * len(found.tokens)
    for node, (parent, chance) in enumerate(zip(found.parents, found.chances, strict=True)):
        reach[node] = chance * (reach[parent] if parent != ROOT else 1.0)
    second = range(2, 6)
    expanded = {parent for parent in found.parents if parent in second}
    assert len(expanded) == 2
    assert min(reach[node] for node in expanded) >= max(reach[node] for node in set(second) - expanded)


@pytest.mark.parametrize("pieces", [2, 5, 29])
def test_asking_in_between_changes_nothing(target: Target, drafter: LoadedDrafter, pieces: int) -> None:
    """What its own drafts left in the cache is written over, and features wait until it is asked."""
    once, often = (fed(target, drafter, number).propose(ask(40, 4, 3)) for number in (1, pieces))
    assert (once.tokens, once.parents) == (often.tokens, often.parents)


def test_the_time_of_the_first_asks_is_not_believed(target: Target, drafter: LoadedDrafter) -> None:
    assert fed(target, drafter, 1 + COLD_ASKS).seconds() == 0
    assert fed(target, drafter, 2 + COLD_ASKS).seconds() > 0


def test_it_stops_where_another_step_is_not_worth_its_time(target: Target, drafter: LoadedDrafter) -> None:
    def depth(rate: float, worth: float) -> int:
        # Asked some times before, so that it knows what a step takes.
        return _depth(fed(target, drafter, 2 + COLD_ASKS).propose(ask(200, 6, 2, rate, worth)))

    assert depth(0.0, 0.0) == depth(1e-6, 0.0) == 6
    assert depth(1e9, 0.0) == 1
    assert depth(1e-6, 1.0) == 1, "no child is worth being verified"


def _depth(found: Candidates) -> int:
    depths: list[int] = []
    for parent in found.parents:
        depths.append(1 + (depths[parent] if parent != ROOT else 0))
    return max(depths)


def test_a_step_costs_its_forward_and_what_is_made_of_it(
    target: Target, drafter: LoadedDrafter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that moves a second in every forward and four in every choice of children, a step takes five."""
    proposer, now = fed(target, drafter), [0.0]

    def passing(name: str, seconds: float) -> None:
        real = getattr(EagleProposer, name)

        def run(*args: Any) -> Any:
            now[0] += seconds
            return real(*args)

        monkeypatch.setattr(EagleProposer, name, run)

    passing("_run", 1.0)
    passing("_spread", 4.0)
    monkeypatch.setattr("draftwing.engine.proposers.drafter.time.perf_counter", lambda: now[0])
    for number in range(COLD_ASKS + 2):
        proposer.extend([7 + number], features(target, [5, 7 + number]))
        proposer.propose(ask(40, 3, 2))
    assert proposer._step_s == pytest.approx(5)
    assert proposer.seconds() == pytest.approx(15)
