"""The engine: requests in, token events out, with or without speculation."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator

import torch
from torch import Tensor

from draftwing.core.errors import UserError
from draftwing.engine.cost import VerifyCost, measure_cost
from draftwing.engine.plan import Planner
from draftwing.engine.proposers.base import Proposer
from draftwing.engine.request import Answer, Event, Request
from draftwing.engine.shape import AUTO, MOST_NODES, Shape
from draftwing.engine.step import Sequence, choose_tokens, cycle, plain_step
from draftwing.engine.stops import Stops
from draftwing.engine.tree import Tree
from draftwing.ops.sampling import uniforms
from draftwing.target.backend import Backend, Forward
from draftwing.target.tokenizer import Tokenizer

PREFILL_ROWS = 512


class Engine:
    """One sequence at a time on slot 0 of a backend. Without proposers it decodes plainly.

    `costs`, seconds of a verify by its tokens, are measured here when a tree is sized by them and none are given.
    """

    def __init__(
        self,
        backend: Backend,
        tokenizer: Tokenizer,
        proposers: Collection[Proposer] = (),
        shape: Shape = AUTO,
        costs: dict[int, float] | None = None,
    ) -> None:
        self.backend, self.tokenizer, self.shape = backend, tokenizer, shape
        wanted = {proposer.taps for proposer in proposers if proposer.taps}
        if len(wanted) > 1:
            raise ValueError(f"proposers want different taps: {sorted(wanted)}")
        self.taps = next(iter(wanted), ())
        measured = None
        if proposers and shape.auto:
            measured = VerifyCost(costs or measure_cost(backend, self.taps))
        self.planner = Planner(proposers, shape, measured)
        self.answer: Answer | None = None
        self.watch: Callable[[Tree, list[int]], None] = lambda tree, chosen: None
        """Told of every cycle's tree and what the target chose after each of its nodes."""

    def stream(self, request: Request, *, speculate: bool = True) -> Iterator[Event]:
        """Yield an event for each token; afterwards `answer` holds the whole. `speculate=False` runs the plain twin."""
        start = time.perf_counter()
        speculate = speculate and bool(self.planner.proposers)
        sequence, events = self._prefill(request, speculate)
        first = last = time.perf_counter()
        gaps: list[float] = []
        yield from events
        while not sequence.stops.finish:
            if len(sequence.tokens) >= self.backend.cache.capacity:
                sequence.stops.end()
                break
            if speculate:
                events, tree, chosen = cycle(self.backend, self.planner, sequence, 0, self.taps)
                self.watch(tree, chosen)
            else:
                events = plain_step(self.backend, sequence, 0)
            now = time.perf_counter()
            gaps.append(now - last)
            last = now
            yield from events
        finish = sequence.stops.finish
        assert finish is not None
        self.answer = Answer(
            tokens=sequence.tokens[len(request.prompt) :],
            text=sequence.stops.text,
            finish=finish,
            counters=sequence.counters,
            prefill_s=first - start,
            decode_s=last - first,
            phases=sequence.phases,
            gaps=gaps,
            notes=[proposer.note for proposer in self.planner.proposers if speculate and proposer.note],
        )

    def generate(self, request: Request, *, speculate: bool = True) -> Answer:
        """The whole answer at once."""
        for _ in self.stream(request, speculate=speculate):
            pass
        assert self.answer is not None
        return self.answer

    def _prefill(self, request: Request, speculate: bool) -> tuple[Sequence, list[Event]]:
        """Run the prompt and commit the token it yields, which belongs to no cycle."""
        backend, capacity = self.backend, self.backend.cache.capacity
        if len(request.prompt) >= capacity:
            raise UserError(
                f"The prompt has {len(request.prompt)} tokens, the context holds {capacity}.",
                "Shorten the prompt, or raise --context.",
            )
        stops = Stops(self.tokenizer.decode, backend.config.eos_ids, request.stop_strings, request.max_new_tokens)
        sampling = request.sampling
        draws = None if sampling.greedy else uniforms(sampling.seed, request.max_new_tokens + MOST_NODES)
        sequence = Sequence(request, list(request.prompt), draws, stops)
        backend.cache.rollback(0, 0)
        out, features_MF = self._run_prompt(request.prompt, self.taps if speculate else ())
        first = choose_tokens(out, sequence, [0])[-1]
        if speculate:
            self.planner.greedy = sampling.greedy
            for proposer in self.planner.proposers:
                proposer.begin(request.prompt[0])
                proposer.extend([*request.prompt[1:], first], features_MF)
        text = stops.push(first)
        sequence.tokens.append(first)
        return sequence, [Event(first, text)]

    def _run_prompt(self, prompt: tuple[int, ...], taps: tuple[int, ...]) -> tuple[Forward, Tensor | None]:
        """The last forward, and the features of all rows where taps are asked for."""
        features: list[Tensor] = []
        for start in range(0, len(prompt), PREFILL_ROWS):
            rows_1M = torch.tensor([prompt[start : start + PREFILL_ROWS]], device=self.backend.cache.keys_LSKCD.device)
            out = self.backend.forward(rows_1M, range(1), taps=taps, logits="last")
            if out.taps_BMAH is not None:
                features.append(out.taps_BMAH[0].flatten(1))
        return out, torch.cat(features) if features else None
