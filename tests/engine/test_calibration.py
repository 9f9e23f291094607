"""Estimates begin at the prior, come to what happens, and are reported beside it."""

from __future__ import annotations

import random

import pytest

from draftwing.engine.calibration import PRIOR_TRIALS, Calibration
from draftwing.engine.tree import ROOT, Candidates, Tree, Trie


def merge(current: int, sources: list[Candidates]) -> Tree:
    trie = Trie(current)
    for source in sources:
        trie.add(source)
    return trie.cut(len(trie))


def _one(token: int, bucket: str) -> Candidates:
    source = Candidates("p")
    source.add(token, ROOT, 0.5, bucket)
    return source


def test_an_estimate_goes_from_the_prior_to_what_is_observed() -> None:
    calibration, draws = Calibration(), random.Random(0)
    assert calibration.chance("p", "b", 0.9) == pytest.approx(0.9)
    tree = merge(0, [_one(5, "b")])
    calibration.learn(tree, [6, 0])
    assert calibration.chance("p", "b", 0.9) == pytest.approx(PRIOR_TRIALS * 0.9 / (PRIOR_TRIALS + 1), rel=0.01)
    for _ in range(2000):
        calibration.learn(tree, [5 if draws.random() < 0.3 else 6, 0])
    # 200 trials of weight: one standard deviation is 0.033.
    assert calibration.chance("p", "b", 0.9) == pytest.approx(0.3, abs=0.1)
    for _ in range(2000):
        calibration.learn(tree, [5, 0])
    assert calibration.chance("p", "b", 0.9) > 0.95, "old trials fade"
    for _ in range(2000):
        calibration.learn(tree, [6, 0])
    assert 0.001 < calibration.chance("p", "b", 0.9) < 0.01, "never quite 0, or it would not be tried again"
    (row,) = calibration.table()
    assert (row["proposer"], row["bucket"], row["trials"]) == ("p", "b", 6001)
    assert row["observed"] == pytest.approx(2600 / 6001, abs=0.02)
    assert row["estimated"] == pytest.approx(row["observed"], abs=0.05)


def test_only_children_of_accepted_nodes_are_trials() -> None:
    r"""The target takes 1 and then 3; 2 was tried and wrong; what stands below 2 was never asked.

    0 -+- 1 -- 3
       +- 2 -- 4
    """
    source = Candidates("p")
    one, two = source.add(1, ROOT, 0.5, "one"), source.add(2, ROOT, 0.4, "two")
    source.add(3, one, 0.5, "three")
    source.add(4, two, 0.5, "four")
    other = Candidates("q")
    other.add(1, ROOT, 0.5, "same")
    calibration = Calibration()
    for bucket in ("one", "two", "three", "four"):
        calibration.chance("p", bucket, 0.5)
    calibration.chance("q", "same", 0.5)
    tree = merge(0, [source, other])
    assert tree.tokens == [0, 1, 2, 3, 4]
    calibration.learn(tree, [1, 3, 4, 9, 9])
    counted = {(row["proposer"], row["bucket"]): (row["trials"], row["observed"]) for row in calibration.table()}
    assert counted == {("p", "one"): (1, 1), ("p", "two"): (1, 0), ("p", "three"): (1, 1), ("q", "same"): (1, 1)}
