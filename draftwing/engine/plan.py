"""Which tree a cycle verifies: who is asked, and how many candidates are worth their time.

With a given shape every proposer is asked and the tree is cut to the shape. Sized by cost (`auto`), a cycle is chosen
to maximise

    expected tokens - rate x seconds          rate: tokens a second that decoding reaches in text like this

which over many cycles maximises tokens over time (Dinkelbach's method for a ratio). Text like this: what is ahead has
to be decoded anyway, so a second is worth the tokens that it would bring there, few in new text and many in a loop;
one rate over all text would not ask the drafter in new text that follows a loop. Expected tokens are the sum of
`reach` over the nodes; seconds are those of the verify, measured on this machine, and of asking. Free proposers are
asked first. One that takes time is asked when what it added in like situations (how sure the others were of the next
token) was worth more than its time, and now and then otherwise, so that the answer can change. A tree of one node,
plain decoding, is among the choices.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass, field, replace

from draftwing.engine.calibration import Calibration
from draftwing.engine.cost import VerifyCost
from draftwing.engine.proposers.base import Ask, Proposer
from draftwing.engine.shape import Shape
from draftwing.engine.tree import Tree, Trie

# Text is alike when the best candidate of the free proposers is as likely: three kinds, each with its rate.
KINDS = (0.5, 0.9)
# Situations in which gains are noted, finer: how likely the best candidate so far is.
SURE = (0.01, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
# How quickly gains follow; where nobody was asked yet, asking is believed to gain half a token.
FOLLOW, HOPED = 0.05, 0.5
# One that does not pay is asked again after so many cycles of a situation, then after twice as many, and so on.
RETRY, MOST_PATIENCE = 32, 512
# A rate follows the last fifty cycles of its kind or so.
FADE = 0.98


@dataclass
class _Gain:
    """What one proposer added in one situation, in tokens, and how long it has not been asked there."""

    mean: float = HOPED
    skipped: int = 0
    patience: int = RETRY


@dataclass
class Plan:
    """A cycle's tree, the proposers that had candidates for it, and the seconds that each phase of planning took."""

    tree: Tree
    asked: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


@dataclass
class Planner:
    """Sizes the cycles of one engine; what it learns stays from request to request.

    `costs` is None with a given shape. `calibration` counts greedy and sampled decoding apart.
    """

    proposers: Collection[Proposer]
    shape: Shape
    costs: VerifyCost | None = None
    calibrations: dict[bool, Calibration] = field(default_factory=lambda: {True: Calibration(), False: Calibration()})
    greedy: bool = True
    _gains: dict[tuple[str, int], _Gain] = field(default_factory=dict)
    _kind: int = 0
    _tokens: list[float] = field(default_factory=lambda: [0.0] * (len(KINDS) + 1))
    _seconds: list[float] = field(default_factory=lambda: [0.0] * (len(KINDS) + 1))

    @property
    def calibration(self) -> Calibration:
        """The one of the decoding under way."""
        return self.calibrations[self.greedy]

    @property
    def rate(self) -> float:
        """Tokens a second in text like this; before the first cycles, what plain decoding should reach."""
        assert self.costs
        return (self._tokens[self._kind] + 1) / (self._seconds[self._kind] + self.costs.seconds[1])

    def plan(self, current: int, room: int, left: int) -> Plan:
        """The tree of the next cycle, whose root is the newest token.

        `room` is how many tokens the context still takes, `left` how many the answer may still take.
        """
        begun = time.perf_counter()
        shape, trie = self.shape, Trie(current)
        nodes = min(shape.nodes, room)
        # Tokens past the answer's end are wasted, but a shape that was given is kept.
        depth = min(shape.steps, nodes - 1, left - 1 if shape.auto else shape.steps)
        plan = Plan(trie.cut(1))
        if depth < 1:
            return plan
        ask = Ask(shape.nodes, depth, shape.width, self.calibration.chance)
        if shape.auto:
            plan.tree = self._by_cost(trie, ask, nodes, plan)
        else:
            for proposer in self.proposers:
                self._consult(proposer, trie, ask, plan)
            plan.tree = trie.chain(depth) if shape.chain else trie.cut(nodes)
        plan.seconds["tree"] = time.perf_counter() - begun - sum(plan.seconds.values())
        return plan

    def learn(self, tree: Tree, chosen: list[int], verify_s: float) -> None:
        """What the target chose after each node, and how long its forward took."""
        self.calibration.learn(tree, chosen)
        if self.costs:
            self.costs.correct(len(tree), verify_s)

    def count(self, tokens: int, seconds: float) -> None:
        """A whole cycle committed so many tokens in so long."""
        self._tokens[self._kind] = FADE * self._tokens[self._kind] + tokens
        self._seconds[self._kind] = FADE * self._seconds[self._kind] + seconds

    def _by_cost(self, trie: Trie, ask: Ask, nodes: int, plan: Plan) -> Tree:
        """Ask whoever is worth the time, the free ones first, and cut where more nodes cost more than they bring."""
        priced = [proposer for proposer in self.proposers if proposer.seconds() > 0]
        # Who does not know its price yet is asked like the free ones, but not to any depth: by the last cycle's rate.
        ask = replace(ask, rate=self.rate, worth=self._worth())
        for proposer in self.proposers:
            if proposer not in priced:
                self._consult(proposer, trie, ask, plan)
        self._kind = bisect_right(KINDS, max(trie.reach[1:], default=0.0))
        ask = replace(ask, rate=self.rate, worth=self._worth())
        for proposer in sorted(priced, key=lambda one: one.seconds()):
            before, gain = self._best(trie, nodes)[1], self._gain(proposer, trie)
            if _pays(gain, ask.rate * proposer.seconds()):
                self._consult(proposer, trie, ask, plan)
                gain.mean += FOLLOW * (self._best(trie, nodes)[1] - before - gain.mean)
        return trie.cut(self._best(trie, nodes)[0])

    def _consult(self, proposer: Proposer, trie: Trie, ask: Ask, plan: Plan) -> None:
        """Ask a proposer and take in what it says."""
        start = time.perf_counter()
        found = proposer.propose(ask)
        plan.seconds[proposer.name] = time.perf_counter() - start
        if found.tokens:
            plan.asked.append(proposer.name)
            trie.add(found)

    def _gain(self, proposer: Proposer, trie: Trie) -> _Gain:
        surest = max(trie.reach[1:], default=0.0)
        return self._gains.setdefault((proposer.name, bisect_right(SURE, surest)), _Gain())

    def _best(self, trie: Trie, nodes: int) -> tuple[int, float]:
        """(size, value) of the best tree: nodes are taken from the likeliest on while they are worth their time."""
        assert self.costs
        seconds, rate = self.costs.seconds, self.rate
        best, best_value, tokens = 1, float("-inf"), 0.0
        for size, reach in enumerate(sorted(trie.reach, reverse=True)[: min(nodes, len(seconds) - 1)], 1):
            tokens += reach
            value = tokens - rate * seconds[size]
            if value > best_value:
                best, best_value = size, value
        return best, best_value

    def _worth(self) -> float:
        """Tokens that verifying one more candidate costs, among some."""
        assert self.costs
        seconds = self.costs.seconds
        some = min(16, len(seconds) - 1)
        return self.rate * (seconds[some] - seconds[1]) / max(1, some - 1)


def _pays(gain: _Gain, cost: float) -> bool:
    """Whether to ask: it pays, or it is time to see whether it does by now."""
    if gain.mean > cost:
        gain.skipped, gain.patience = 0, RETRY
        return True
    gain.skipped += 1
    if gain.skipped <= gain.patience:
        return False
    gain.skipped, gain.patience = 0, min(2 * gain.patience, MOST_PATIENCE)
    return True
