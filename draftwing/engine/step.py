"""One step of decoding, plain or speculative. This file is the system in small: propose, verify, commit, emit.

The target chooses a token after every row of the verified tree, greedily or by the uniform number that belongs to
that place of the text. A candidate is accepted when it is the token that the target chose after its parent:

    rows       current  d1   d2   d3        a chain, the tree without branches (`engine/tree` draws one with)
    chosen     c0       c1   c2   c3        c_i: the target's token after row i
    accepted   d1 = c0, d2 = c1, d3 != c2   -> commit c0 c1 c2 (two drafts and the bonus token)

Committed tokens are thus always the target's own choices, made as plain decoding makes them. Where one candidate d is
proposed, this is speculative sampling (arXiv 2211.17192) with a one-point proposal: d is accepted with probability
p(d), and otherwise the token is drawn from p without d.

Shapes: M rows to verify (the current token and its candidates), A taps, H hidden, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftwing.core.errors import UserError
from draftwing.engine.cost import finish
from draftwing.engine.plan import Planner
from draftwing.engine.request import Counters, Event, Request
from draftwing.engine.stops import Stops
from draftwing.engine.tree import Tree
from draftwing.ops.sampling import argmax, choose
from draftwing.target.backend import Backend, Forward


@dataclass
class Sequence:
    """A request under way. `phases` are seconds of decoding, by what they were spent on."""

    request: Request
    tokens: list[int]
    uniforms: Tensor | None
    stops: Stops
    counters: Counters = field(default_factory=Counters)
    phases: dict[str, float] = field(default_factory=dict)

    @property
    def new(self) -> int:
        """Committed tokens of the answer."""
        return len(self.tokens) - len(self.request.prompt)

    def spend(self, phase: str, seconds: float) -> None:
        """Count time."""
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Count the time inside."""
        start = time.perf_counter()
        yield
        self.spend(phase, time.perf_counter() - start)


def plain_step(backend: Backend, sequence: Sequence, slot: int) -> list[Event]:
    """Feed the newest token, choose the next one, emit it. The twin that speculation must equal."""
    with sequence.timed("target"):
        rows_1M = torch.tensor([sequence.tokens[-1:]], device=backend.cache.keys_LSKCD.device)
        out = backend.forward(rows_1M, range(slot, slot + 1))
        finish(out.logits_BMV)
    with sequence.timed("choose"):
        chosen = choose_tokens(out, sequence, [0])
    sequence.counters.plain_steps += 1
    return _emit(sequence, chosen, [""])


def cycle(
    backend: Backend, planner: Planner, sequence: Sequence, slot: int, taps: tuple[int, ...]
) -> tuple[list[Event], Tree, list[int]]:
    """One cycle of speculation: plan a tree, verify it, commit what stands, tell the proposers, emit.

    Returns the events, the tree, and the target's token after each of its nodes.
    """
    start = time.perf_counter()
    base = backend.cache.lengths[slot]
    left = sequence.request.max_new_tokens - sequence.new
    plan = planner.plan(sequence.tokens[-1], backend.cache.capacity - len(sequence.tokens), left)
    tree = plan.tree
    begun = time.perf_counter()
    out = _verify(backend, tree, slot, taps)
    finish(out.logits_BMV)
    verify_s = time.perf_counter() - begun
    with sequence.timed("choose"):
        chosen = choose_tokens(out, sequence, [node.depth for node in tree.nodes])
    path = tree.accepted(chosen)
    committed = [chosen[row] for row in path]
    commit(backend, planner, slot, base, out, path, committed)
    # A committed token was proposed by whoever proposed the row that follows it in the path; the bonus by nobody.
    proposers = ["+".join(sorted(name for name, _ in tree.nodes[row].proposers)) for row in path[1:]]
    events = _emit(sequence, committed, [*proposers, ""])
    with sequence.timed("tree"):
        planner.learn(tree, chosen, verify_s)
    for phase, seconds in (*plan.seconds.items(), ("target", verify_s)):
        sequence.spend(phase, seconds)
    _count(sequence.counters, tree, path, events, plan.asked)
    planner.count(len(events), time.perf_counter() - start)
    return events, tree, chosen


def commit(
    backend: Backend, planner: Planner, slot: int, base: int, out: Forward, path: list[int], committed: list[int]
) -> None:
    """Keep the cache entries of the path's rows; proposers learn the tokens, and the features of these rows."""
    backend.cache.keep(slot, base, path)
    features_MF = None
    if out.taps_BMAH is not None:
        # A copy: a proposer may hold it for long, and a view would hold the rejected rows too.
        features_MF = out.taps_BMAH[0, path].flatten(1)
    for proposer in planner.proposers:
        proposer.extend(committed, features_MF)


def _verify(backend: Backend, tree: Tree, slot: int, taps: tuple[int, ...]) -> Forward:
    rows_1M = torch.tensor([tree.tokens], device=backend.cache.keys_LSKCD.device)
    slots = range(slot, slot + 1)
    if tree.is_chain:
        return backend.forward(rows_1M, slots, taps=taps)
    return backend.forward(rows_1M, slots, taps=taps, positions_M=tree.positions(), visible_MM=tree.visible())


def choose_tokens(out: Forward, sequence: Sequence, depths: list[int]) -> list[int]:
    """The target's token after each row; UserError when its logits are broken.

    Row i chooses the new token number `depths[i]` from here on, with that token's uniform number.
    """
    assert out.logits_BMV is not None
    logits_MV = out.logits_BMV[0]
    # argmax ranks NaN first, so looking at the best entries finds a NaN anywhere in a row.
    best_M = argmax(logits_MV)
    if not torch.isfinite(logits_MV.gather(-1, best_M[:, None])).all():
        raise UserError(
            "The target's logits are NaN or infinite.",
            "Its weights are damaged or its dtype overflows: try --dtype float32.",
        )
    if sequence.request.sampling.greedy:
        chosen: list[int] = best_M.tolist()
        return chosen
    assert sequence.uniforms is not None
    draws_M = sequence.uniforms[torch.tensor(depths) + sequence.new]
    chosen = choose(logits_MV, sequence.request.sampling, draws_M.to(logits_MV.device)).tolist()
    return chosen


def _emit(sequence: Sequence, chosen: list[int], proposers: list[str]) -> list[Event]:
    """Append tokens up to the first that ends the answer."""
    events = []
    for token, proposer in zip(chosen, proposers, strict=True):
        text = sequence.stops.push(token)
        sequence.tokens.append(token)
        events.append(Event(token, text, proposer))
        if sequence.stops.finish:
            break
    return events


def _count(counters: Counters, tree: Tree, path: list[int], events: list[Event], asked: list[str]) -> None:
    matched = len(path) - 1
    judged = matched + any(node.parent == path[-1] for node in tree.nodes[path[-1] + 1 :])
    counters.add_cycle(len(tree), matched, judged, len(events))
    for event in events:
        if event.proposer:
            counters.by[event.proposer] = counters.by.get(event.proposer, 0) + 1
    for name in asked:
        counters.asked[name] = counters.asked.get(name, 0) + 1
