"""Walked cycles: the drawing in train/walk.py, the ends, and decoding simulated token by token."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwing.engine.request import Counters
from draftwing.engine.tree import ROOT, Candidates, Trie
from draftwing.train.walk import Cycles, walk

DRAWN = torch.tensor([[True, True, False, True], [True, False, True, False]])


def walked(right: torch.Tensor, steps: int) -> Cycles:
    tally = Cycles(steps)
    walk(right, tally)
    return tally


def absent(figure: float | None) -> bool:
    """Nothing was there to measure."""
    return figure is None or math.isnan(figure)


def test_the_drawing() -> None:
    tally = walked(DRAWN, 2)
    assert (tally.cycles, tally.committed) == (2, 4)
    assert tally.reached == [2, 1]
    assert tally.accepted == [2, 1]
    assert tally.accept_length == 2.0
    assert tally.position_acceptances == [1.0, 1.0]


@pytest.mark.parametrize(("steps", "cycles"), [(1, 5), (2, 4), (3, 3), (9, 1)])
def test_all_right_commits_steps_and_a_bonus_each_cycle(steps: int, cycles: int) -> None:
    """Ten tokens in cycles of up to steps + 1; the last cycle is cut by the text's end."""
    tally = walked(torch.ones(steps, 10, dtype=torch.bool), steps)
    assert (tally.cycles, tally.committed) == (cycles, 10)
    assert tally.accepted == tally.reached
    assert all(share == 1 for share in tally.position_acceptances)


def test_all_wrong_commits_the_bonus_alone() -> None:
    tally = walked(torch.zeros(3, 10, dtype=torch.bool), 3)
    assert (tally.cycles, tally.committed, tally.accept_length) == (10, 10, 1.0)
    assert (tally.reached, tally.accepted) == ([10, 0, 0], [0, 0, 0])
    assert tally.position_acceptances[0] == 0
    assert all(absent(share) for share in tally.position_acceptances[1:])


def test_drafts_past_the_texts_end_are_neither_judged_nor_committed() -> None:
    """Two tokens are left and five drafts are right: nobody can say so of the last three, nor is there a bonus."""
    tally = walked(torch.ones(5, 2, dtype=torch.bool), 5)
    assert (tally.cycles, tally.committed) == (1, 2)
    assert tally.reached == [1, 1, 0, 0, 0]


def test_a_later_text_adds_to_the_tally() -> None:
    tally = walked(DRAWN, 2)
    walk(DRAWN, tally)
    walk(torch.zeros(2, 0, dtype=torch.bool), tally)
    assert (tally.cycles, tally.committed, tally.reached, tally.accepted) == (4, 8, [4, 2], [4, 2])


def test_no_cycle_has_no_accept_length() -> None:
    assert absent(Cycles(2).accept_length)


def test_a_cycle_starts_after_what_the_drafter_got_wrong() -> None:
    """The mean over rows says 8 in 12; cycles meet the hard rows more often and say less."""
    easy = torch.tensor([[True, True, False] * 4])
    tally = walked(easy, 1)
    assert tally.position_acceptances[0] == pytest.approx(4 / 8)


def simulate(text: list[int], drafts: list[list[int]], steps: int) -> Counters:
    """Decode `text` as the engine does: draft from where the text stands, verify, commit, cut at the end."""
    counters, at = Counters(reached=[0] * steps, accepted=[0] * steps), 0
    while at < len(text):
        # What the target says after each row; past the end it goes on with tokens that no draft equals.
        chosen = [*text[at : at + steps + 1], *[-1] * (steps + 1)][: steps + 1]
        source, parent = Candidates("drafter"), ROOT
        for token in drafts[at][:steps]:
            parent = source.add(token, parent, 0.5)
        accepted = len(Trie(0).add(source).chain(steps).accepted(chosen)) - 1
        committed = min(accepted + 1, len(text) - at)
        counters.add_cycle(steps + 1, accepted, min(accepted + 1, steps), committed)
        at += committed
    return counters


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_equals_decoding_simulated_token_by_token(data: st.DataObject) -> None:
    length, steps = data.draw(st.integers(1, 15)), data.draw(st.integers(1, 5))
    text = data.draw(st.lists(st.integers(0, 1), min_size=length, max_size=length))
    drafted = st.lists(st.integers(0, 1), min_size=steps, max_size=steps)
    drafts = data.draw(st.lists(drafted, min_size=length, max_size=length))
    # What is said of places past the end must not matter.
    places = [[q + j for q in range(length)] for j in range(steps)]
    right = torch.tensor([[p >= length or drafts[p - j][j] == text[p] for p in row] for j, row in enumerate(places)])
    tally, counters = walked(right, steps), simulate(text, drafts, steps)
    for name in ("cycles", "committed", "reached", "accepted", "accept_length"):
        assert getattr(tally, name) == getattr(counters, name), name
    for share, other in zip(tally.position_acceptances, counters.position_acceptances, strict=True):
        assert absent(share) if other is None else share == other
