"""Who is asked and how much is verified: the best value of all sizes, and nobody who is not worth the time."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from draftwing.core.errors import UserError
from draftwing.engine.cost import SIZES, VerifyCost, kept_cost, measure_cost
from draftwing.engine.engine import Engine
from draftwing.engine.plan import MOST_PATIENCE, Planner
from draftwing.engine.proposers.base import Ask
from draftwing.engine.request import Request
from draftwing.engine.shape import AUTO, MOST_NODES, Shape, chain, parse_shape
from draftwing.engine.tree import ROOT, Candidates
from draftwing.ops.sampling import Sampling
from tests.law.models import tiny_target

FLAT = {1: 0.010, 8: 0.012, 64: 0.030}


class Toy:
    """The smallest proposer: says the same chain each time, with a chance and a price."""

    taps: tuple[int, ...] = ()
    note: str | None = None

    def __init__(self, name: str, tokens: list[int], chance: float = 0.9, price: float = 0.0) -> None:
        self.name, self.price, self.asks = name, price, 0
        self._tokens, self._chance = tokens, chance

    def begin(self, token: int) -> None:
        self.text = [token]

    def extend(self, tokens: list[int], features_MF: Tensor | None) -> None:
        self.text += tokens

    def seconds(self) -> float:
        return self.price

    def propose(self, ask: Ask) -> Candidates:
        self.asks += 1
        out, parent = Candidates(self.name), ROOT
        for token in self._tokens[: ask.depth]:
            parent = out.add(token, parent, ask.chance(self.name, "all", self._chance), "all")
        return out


def planner(*proposers: Toy, costs: dict[int, float] | None = None) -> Planner:
    return Planner(proposers, AUTO, VerifyCost(costs or FLAT))


def test_the_engine_takes_any_proposer(tiny_folder: Path) -> None:
    """One that repeats the newest token: nothing but the interface is needed, and the output does not change."""

    class Echo(Toy):
        def propose(self, ask: Ask) -> Candidates:
            self._tokens = self.text[-1:] * 4
            return super().propose(ask)

    target, tokenizer = tiny_target(tiny_folder)
    for shape in (AUTO, chain(3), Shape(4, 2, 2)):
        toy = Echo("echo", [])
        engine = Engine(target.decoder(1, 200), tokenizer, [toy], shape)
        for sampling in (Sampling(), Sampling(0.5, top_k=2, seed=1)):
            request = Request((1, 2, 3), 40, sampling)
            answer = engine.generate(request)
            assert answer.tokens == engine.generate(request, speculate=False).tokens
            assert toy.text == [1, 2, 3, *answer.tokens]
        assert toy.asks > 0
        assert [row["proposer"] for row in engine.planner.calibration.table()] == ["echo"]


def test_a_sure_chain_is_verified_and_an_unlikely_one_is_not() -> None:
    assert len(planner(Toy("sure", [5] * 30, 0.99)).plan(1, 100, 100).tree) > 15
    assert len(planner(Toy("wild", [5] * 30, 0.01)).plan(1, 100, 100).tree) == 1
    assert len(planner().plan(1, 100, 100).tree) == 1


def test_no_tree_reaches_past_the_answer_or_the_context() -> None:
    toy = Toy("sure", [5] * 60, 0.99)
    assert planner(toy).plan(1, 100, 4).tree.tokens == [1, 5, 5, 5]
    assert planner(toy).plan(1, 3, 100).tree.tokens == [1, 5, 5]
    assert planner(toy).plan(1, 100, 1).tree.tokens == [1]
    fixed = Planner([toy], chain(5))
    assert len(fixed.plan(1, 100, 2).tree) == 6, "a given shape is kept, whatever the answer still takes"
    assert len(fixed.plan(1, 3, 100).tree) == 3


@given(
    st.lists(st.floats(0.0, 1.0), max_size=20),
    st.floats(0.0, 0.01),
    st.integers(1, 30),
)
def test_the_size_is_the_best_of_all(chances: list[float], slope: float, nodes: int) -> None:
    from draftwing.engine.tree import Trie

    source = Candidates("x")
    for number, chance in enumerate(chances):
        source.add(number % 3, (number - 1) // 2 if number else ROOT, chance)
    trie = Trie(0).add(source)
    plan = planner(costs={1: 0.01, 64: 0.01 + slope * 63})
    size, value = plan._best(trie, nodes)
    assert plan.costs is not None
    values = [trie.cut(n).expected - plan.rate * plan.costs.seconds[n] for n in range(1, min(nodes, len(trie)) + 1)]
    assert value == pytest.approx(max(values))
    assert values[size - 1] == pytest.approx(value)


def decode(plan: Planner, cycles: int, right: bool) -> float:
    """Run cycles in which the target always, or never, chooses what is proposed; mean nodes of the last hundred."""
    sizes = []
    for _ in range(cycles):
        tree = plan.plan(1, 1000, 1000).tree
        chosen = [5 if right else 6] * len(tree)
        tokens = len(tree.accepted(chosen))
        assert plan.costs
        seconds = plan.costs.seconds[len(tree)]
        plan.learn(tree, chosen, seconds)
        plan.count(tokens, seconds)
        sizes.append(len(tree))
    return sum(sizes[-100:]) / 100


def test_what_is_observed_decides_not_what_is_believed() -> None:
    assert decode(planner(Toy("modest", [5] * 30, 0.4)), 400, right=True) > 15
    assert decode(planner(Toy("boaster", [5] * 30, 0.9)), 600, right=False) < 1.3


def test_one_that_does_not_pay_is_asked_less_and_less_and_comes_back_when_it_does() -> None:
    useless = Toy("useless", [5] * 30, 0.001, price=0.005)
    plan = planner(useless)
    decode(plan, 2000, right=False)
    asks = useless.asks
    decode(plan, 2000, right=False)
    assert 0 < useless.asks - asks <= 2000 / MOST_PATIENCE + 1
    useless._tokens, asks = [5] * 30, useless.asks
    plan.calibration.buckets.clear()
    useless._chance = 0.95
    decode(plan, 20 * MOST_PATIENCE, right=True)
    assert useless.asks - asks > 1000


def test_new_text_behind_a_loop_is_worth_what_new_text_is() -> None:
    """The drafter pays in new text, whatever rate a loop had reached just before; and nobody is asked at no rate."""
    loop, drafter = Toy("loop", [5] * 62, 0.999), Toy("drafter", [5, 5], 0.6, price=0.004)
    rates: list[float] = []
    real = drafter.propose
    drafter.propose = lambda ask: (rates.append(ask.rate), real(ask))[1]  # type: ignore[method-assign]
    plan = planner(loop, drafter)
    loop._tokens = []
    decode(plan, 100, right=True)
    loop._tokens = [5] * 62
    decode(plan, 300, right=True)
    assert plan.rate > 1000
    rates.clear()
    loop._tokens = []
    decode(plan, 100, right=True)
    assert len(rates) > 95
    assert 100 < min(rates) <= max(rates) < 300, "three tokens in 10 ms and 4 of the drafter"


def test_a_costly_one_is_not_asked_where_a_free_one_is_sure() -> None:
    free, costly = Toy("free", [5] * 62, 0.98), Toy("costly", [5, 5, 5], 0.9, price=0.004)
    plan = planner(costly, free)
    decode(plan, 300, right=True)
    assert free.asks == 300
    assert costly.asks < 60


def test_costs_follow_what_is_measured() -> None:
    costs = VerifyCost({1: 0.01, 4: 0.016, 2: 0.02, 8: 0.02})
    assert costs.seconds[1:] == pytest.approx([0.01, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02, 0.02]), "more is never cheaper"
    costs = VerifyCost({1: 0.01, 9: 0.018})
    assert costs.seconds[5] == pytest.approx(0.014)
    for _ in range(300):
        costs.correct(5, 0.028)
    assert costs.seconds[5] == pytest.approx(0.028, rel=0.02)
    for _ in range(20):
        costs.correct(1, 0.02)
        costs.correct(9, 0.036)
    before = costs.seconds[5]
    costs.correct(5, 60.0)
    assert costs.seconds[5] < 1.1 * before, "a pause of the machine counts little"
    costs.correct(99, 1.0)
    with pytest.raises(ValueError, match="begin at one"):
        VerifyCost({2: 1.0})


def test_costs_are_measured_once_and_kept(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRAFTWING_HOME", str(tmp_path))
    backend = tiny_target(tiny_folder)[0].decoder(1, 400)
    first = kept_cost(backend, "print", ())
    assert list(first) == list(SIZES)
    assert kept_cost(backend, "print", ()) == first
    assert len(list((tmp_path / "costs").iterdir())) == 1
    for path in (tmp_path / "costs").iterdir():
        path.write_text('{"1": -3')
    again = kept_cost(backend, "print", ())
    assert list(again) == list(SIZES) and again != first
    assert kept_cost(backend, "another", ()) != again
    small = tiny_target(tiny_folder)[0].decoder(1, 6)
    assert max(measure_cost(small, ())) <= 3
    assert small.cache.lengths == [0]


def test_shapes_as_typed() -> None:
    assert parse_shape("auto") is AUTO
    assert parse_shape("chain:3") == chain(3) == parse_shape("4:1")
    assert parse_shape("16:4") == Shape(16, 4, 5)
    assert parse_shape("16:4:2") == Shape(16, 4, 2)
    assert [str(parse_shape(text)) for text in ("auto", "chain:3", "16:4:2")] == ["auto", "chain:3", "16:4:2"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "no tree ''"),
        ("16", "no tree '16'"),
        ("chain:x", "no tree"),
        ("chain:17", "Choose 1 to 16"),
        ("65:4", f"Choose 2 to {MOST_NODES}"),
        ("1:2", f"Choose 2 to {MOST_NODES}"),
        ("16:9", "Choose 1 to 8"),
        ("16:0", "Choose 1 to 8"),
        ("16:4:17", "Choose 1 to 16"),
        ("16:2:3", "Say --tree 11:2:3"),
        ("1:1", "Choose 1 to 16"),
    ],
)
def test_impossible_shapes_are_refused_with_the_largest_possible(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_shape(text)
    assert sentence in f"{caught.value.problem} {caught.value.remedy}"


def test_every_largest_shape_is_one_that_a_drafter_yields() -> None:
    for width, steps in itertools.product(range(2, 9), range(1, 5)):
        largest = 1 + width + (steps - 1) * width**2
        if largest <= MOST_NODES:
            assert Shape(largest, width, steps).largest == largest
            with pytest.raises(UserError):
                Shape(largest + 1, width, steps)
