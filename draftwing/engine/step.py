"""One step of decoding, plain or speculative. This file is the system in small: draft, verify, commit, emit.

Shapes: M rows to verify (the current token and its drafts), A taps, H hidden, V vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftwing.core.errors import UserError
from draftwing.engine.propose import Proposer
from draftwing.engine.request import Counters, Event, Request
from draftwing.engine.stops import Stops
from draftwing.engine.verify import matched
from draftwing.ops.sampling import argmax, choose
from draftwing.target.backend import Backend, Forward


@dataclass
class Sequence:
    """A request under way. `fresh_*` are the features and tokens that the drafter has not been fed yet."""

    request: Request
    tokens: list[int]
    uniforms: Tensor | None
    stops: Stops
    counters: Counters
    fresh_features: list[Tensor] = field(default_factory=list)
    fresh_tokens: list[int] = field(default_factory=list)
    draft_s: float = 0.0
    target_s: float = 0.0

    @property
    def new(self) -> int:
        """Committed tokens of the answer."""
        return len(self.tokens) - len(self.request.prompt)


def plain_step(backend: Backend, sequence: Sequence, slot: int) -> list[Event]:
    """Feed the newest token, choose the next one, emit it. The twin that speculation must equal."""
    out = _forward(backend, sequence, slot, sequence.tokens[-1:], taps=())
    chosen = choose_tokens(out, sequence)
    return _emit(sequence, chosen, drafted=0)


def speculative_step(
    backend: Backend, proposer: Proposer, sequence: Sequence, slot: int, num_steps: int, taps: tuple[int, ...]
) -> list[Event]:
    """One cycle."""
    base = backend.cache.lengths[slot]
    drafts = _draft(backend, proposer, sequence, num_steps)
    out = _forward(backend, sequence, slot, [sequence.tokens[-1], *drafts], taps)
    chosen = choose_tokens(out, sequence)
    accepted = matched(drafts, chosen)
    commit(backend, sequence, slot, base, out, chosen[: accepted + 1])
    events = _emit(sequence, chosen[: accepted + 1], drafted=accepted)
    sequence.counters.add_cycle(proposed=num_steps, matched=accepted, committed=len(events))
    return events


def commit(backend: Backend, sequence: Sequence, slot: int, base: int, out: Forward, chosen: list[int]) -> None:
    """Keep the cache entries of the rows whose tokens stand, and their features for the drafter's refeed."""
    backend.cache.keep(slot, base, list(range(len(chosen))))
    assert out.taps_BMAH is not None
    sequence.fresh_features.append(out.taps_BMAH[0, : len(chosen)].flatten(1))
    sequence.fresh_tokens += chosen


def _draft(backend: Backend, proposer: Proposer, sequence: Sequence, num_steps: int) -> list[int]:
    with _timed(sequence, "draft_s"):
        device = backend.cache.keys_LSKCD.device
        features = sequence.fresh_features
        drafts = proposer.propose(
            features[0] if len(features) == 1 else torch.cat(features),
            torch.tensor(sequence.fresh_tokens, device=device),
            num_steps,
        )
        sequence.fresh_features, sequence.fresh_tokens = [], []
        return drafts


def _forward(backend: Backend, sequence: Sequence, slot: int, tokens: list[int], taps: tuple[int, ...]) -> Forward:
    with _timed(sequence, "target_s"):
        return backend.forward(
            torch.tensor([tokens], device=backend.cache.keys_LSKCD.device), range(slot, slot + 1), taps=taps
        )


def choose_tokens(out: Forward, sequence: Sequence) -> list[int]:
    """The target's token after each row; UserError when its logits are broken."""
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
    draws_M = sequence.uniforms[sequence.new : sequence.new + len(logits_MV)]
    chosen = choose(logits_MV, sequence.request.sampling, draws_M.to(logits_MV.device)).tolist()
    return chosen


def _emit(sequence: Sequence, chosen: list[int], drafted: int) -> list[Event]:
    """Append tokens up to the first that ends the answer."""
    events = []
    for place, token in enumerate(chosen):
        text = sequence.stops.push(token)
        sequence.tokens.append(token)
        events.append(Event(token, text, drafted=place < drafted))
        if sequence.stops.finish:
            break
    return events


@contextmanager
def _timed(sequence: Sequence, field_name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    setattr(sequence, field_name, getattr(sequence, field_name) + time.perf_counter() - start)
