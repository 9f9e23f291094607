"""The engine: requests in, token events out, with or without a drafter."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from draftwing.core.errors import UserError
from draftwing.drafter.checkpoint import LoadedDrafter
from draftwing.engine.propose import Proposer
from draftwing.engine.request import Answer, Counters, Event, Request
from draftwing.engine.step import Sequence, choose_tokens, plain_step, speculative_step
from draftwing.engine.stops import Stops
from draftwing.ops.sampling import uniforms
from draftwing.target.backend import Backend, Forward
from draftwing.target.tokenizer import Tokenizer

PREFILL_ROWS = 512
MAX_STEPS = 16


class Engine:
    """One sequence at a time on slot 0 of a backend. `num_steps` counts draft steps; 0 drafts is `drafter=None`."""

    def __init__(
        self, backend: Backend, tokenizer: Tokenizer, drafter: LoadedDrafter | None = None, num_steps: int = 3
    ) -> None:
        if not 1 <= num_steps <= MAX_STEPS:
            raise UserError(
                f"num_steps is {num_steps}.",
                f"Choose 1 to {MAX_STEPS}; to decode without drafting, leave the drafter out.",
            )
        self.backend, self.tokenizer, self.drafter, self.num_steps = backend, tokenizer, drafter, num_steps
        self._proposer = Proposer(drafter, backend.embed, backend.cache.capacity) if drafter else None
        trained = drafter.contract.trained_context if drafter and drafter.contract else backend.cache.capacity
        self._draft_limit = min(trained, backend.cache.capacity)
        self.answer: Answer | None = None

    def stream(self, request: Request, *, speculate: bool = True) -> Iterator[Event]:
        """Yield an event for each token; afterwards `answer` holds the whole. `speculate=False` runs the plain twin."""
        start = time.perf_counter()
        speculate = speculate and self.drafter is not None
        sequence, events = self._prefill(request, speculate)
        first = last = time.perf_counter()
        gaps: list[float] = []
        notes: list[str] = []
        yield from events
        while not sequence.stops.finish:
            if len(sequence.tokens) >= self.backend.cache.capacity:
                sequence.stops.end()
                break
            events = self._step(sequence, speculate, notes)
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
            draft_s=sequence.draft_s,
            target_s=sequence.target_s,
            gaps=gaps,
            notes=notes,
        )

    def generate(self, request: Request, *, speculate: bool = True) -> Answer:
        """The whole answer at once."""
        for _ in self.stream(request, speculate=speculate):
            pass
        assert self.answer is not None
        return self.answer

    def _step(self, sequence: Sequence, speculate: bool, notes: list[str]) -> list[Event]:
        """A cycle where the drafter may draft, else a plain step."""
        if speculate and self._proposer and self.drafter:
            # The chain's last row stands at position len - 2 + num_steps, the last verified token one further.
            if len(sequence.tokens) + self.num_steps <= self._draft_limit:
                return speculative_step(self.backend, self._proposer, sequence, 0, self.num_steps, self.drafter.taps)
            if not notes:
                notes.append(
                    f"Past {self._draft_limit} tokens, the drafter's trained context, decoding went on without drafts."
                )
        sequence.counters.plain_steps += 1
        return plain_step(self.backend, sequence, 0)

    def _prefill(self, request: Request, speculate: bool) -> tuple[Sequence, list[Event]]:
        """Run the prompt and commit the token it yields, which belongs to no cycle."""
        backend, capacity = self.backend, self.backend.cache.capacity
        if len(request.prompt) >= capacity:
            raise UserError(
                f"The prompt has {len(request.prompt)} tokens, the context holds {capacity}.",
                "Shorten the prompt, or raise --context.",
            )
        stops = Stops(self.tokenizer.decode, backend.config.eos_ids, request.stop_strings, request.max_new_tokens)
        draws = (
            None if request.sampling.greedy else uniforms(request.sampling.seed, request.max_new_tokens + MAX_STEPS + 1)
        )
        sequence = Sequence(request, list(request.prompt), draws, stops, Counters(self.num_steps))
        backend.cache.rollback(0, 0)
        if self._proposer:
            self._proposer.reset()
        taps = self.drafter.taps if speculate and self.drafter else ()
        out = self._run_prompt(sequence, taps)
        first = choose_tokens(out, sequence)[-1]
        if taps:
            sequence.fresh_tokens = [*request.prompt[1:], first]
        text = stops.push(first)
        sequence.tokens.append(first)
        return sequence, [Event(first, text, drafted=False)]

    def _run_prompt(self, sequence: Sequence, taps: tuple[int, ...]) -> Forward:
        prompt, device = sequence.request.prompt, self.backend.cache.keys_LSKCD.device
        for start in range(0, len(prompt), PREFILL_ROWS):
            rows_1M = torch.tensor([prompt[start : start + PREFILL_ROWS]], device=device)
            out = self.backend.forward(rows_1M, range(1), taps=taps, logits="last")
            if out.taps_BMAH is not None:
                sequence.fresh_features.append(out.taps_BMAH[0].flatten(1))
        return out
