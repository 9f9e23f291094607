"""The target answers prompts in a batch whose places are refilled as answers end; states are kept on the way.

Shapes: X places (slots of the cache), C capacity in tokens, S states kept (taps, then B_n), H hidden.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from draftwing.capture.record import PREFILL_ROWS, with_last
from draftwing.formats.features import Sample
from draftwing.ops.sampling import Sampling, argmax, choose, uniforms
from draftwing.target.backend import Backend

# Prompts are sorted by length inside groups of this many: neighbours in a batch then have contexts alike.
GROUP = 1024


@dataclass(frozen=True)
class TokenPrompt:
    """A rendered prompt."""

    id: str
    tokens: list[int]


@dataclass
class _Answer:
    """One place's work. `complete` is set when the last token is known but not yet fed."""

    prompt: TokenPrompt
    tokens: list[int]
    uniforms: Tensor
    complete: bool = False
    new: int = field(default=0)


def in_groups(prompts: list[TokenPrompt]) -> list[TokenPrompt]:
    """File order in the large, by length in the small."""
    groups = [prompts[start : start + GROUP] for start in range(0, len(prompts), GROUP)]
    return [prompt for group in groups for prompt in sorted(group, key=lambda item: len(item.tokens))]


class Regenerator:
    """Answers prompts with `backend`, as many at once as its cache has slots."""

    def __init__(self, backend: Backend, taps: tuple[int, ...], max_new_tokens: int, sampling: Sampling) -> None:
        self._backend = backend
        self._kept, self._stored = with_last(taps, backend.config.layers)
        self._max_new = max_new_tokens
        self._sampling = sampling
        places, capacity = len(backend.cache.lengths), backend.cache.capacity
        like = backend.embed(torch.zeros(1, dtype=torch.long, device=backend.cache.keys_LSKCD.device))
        self._states_XCSH = like.new_empty(places, capacity, len(self._kept), like.shape[-1])
        self._argmax_XC = torch.full((places, capacity), -1, dtype=torch.int32)
        self._answers: list[_Answer | None] = [None] * places

    def run(self, prompts: Iterable[TokenPrompt]) -> Iterator[Sample]:
        """Yield each prompt's sample as its answer ends (not in order of the prompts)."""
        waiting = iter(prompts)
        while True:
            for place, answer in enumerate(self._answers):
                if answer is None and (prompt := next(waiting, None)) is not None:
                    self._begin(place, prompt)
            if not any(self._answers):
                return
            self._step()
            for place, answer in enumerate(self._answers):
                if answer is not None and self._backend.cache.lengths[place] == len(answer.tokens) and answer.complete:
                    yield self._finish(place, answer)

    def _begin(self, place: int, prompt: TokenPrompt) -> None:
        """Prefill a place and choose the answer's first token."""
        cache, slots = self._backend.cache, range(place, place + 1)
        cache.lengths[place] = 0
        for start in range(0, len(prompt.tokens), PREFILL_ROWS):
            rows = prompt.tokens[start : start + PREFILL_ROWS]
            out = self._backend.forward(self._ids([rows]), slots, taps=self._kept, logits="last")
            self._states_XCSH[place, start : start + len(rows)] = out.taps_BMAH[0]  # type: ignore[index]
        answer = _Answer(prompt, list(prompt.tokens), self._uniforms(prompt))
        self._answers[place] = answer
        assert out.logits_BMV is not None
        self._extend(answer, int(choose(out.logits_BMV[:, -1], self._sampling, answer.uniforms[:1])[0]))

    def _step(self) -> None:
        """Feed every place's newest token; idle places are fed a token that nobody reads."""
        cache = self._backend.cache
        for place, answer in enumerate(self._answers):
            if answer is None:
                cache.lengths[place] = 0
        at_X = torch.tensor(cache.lengths)
        every_X = torch.arange(len(at_X))
        newest = [[answer.tokens[-1] if answer else 0] for answer in self._answers]
        out = self._backend.forward(self._ids(newest), range(len(newest)), taps=self._kept)
        assert out.logits_BMV is not None and out.taps_BMAH is not None
        logits_XV = out.logits_BMV[:, 0]
        best_X = argmax(logits_XV).cpu()
        self._states_XCSH[every_X, at_X] = out.taps_BMAH[:, 0]
        self._argmax_XC[every_X, at_X] = best_X.int()
        draws_X = torch.stack(
            [
                answer.uniforms[answer.new] if answer else torch.zeros((), dtype=torch.float64)
                for answer in self._answers
            ]
        )
        chosen = (best_X if self._sampling.greedy else choose(logits_XV, self._sampling, draws_X)).tolist()
        for answer, token in zip(self._answers, chosen, strict=True):
            if answer and not answer.complete:
                self._extend(answer, token)

    def _extend(self, answer: _Answer, token: int) -> None:
        answer.tokens.append(token)
        answer.new += 1
        full = len(answer.tokens) == self._backend.cache.capacity
        answer.complete = full or answer.new == self._max_new or token in self._backend.config.eos_ids

    def _finish(self, place: int, answer: _Answer) -> Sample:
        self._answers[place] = None
        T, P = len(answer.tokens), len(answer.prompt.tokens)
        mask_T = torch.arange(T) >= P
        argmax_T = torch.where(mask_T, self._argmax_XC[place, :T], -1)
        return Sample(
            answer.prompt.id,
            torch.tensor(answer.tokens),
            mask_T,
            argmax_T,
            self._states_XCSH[place, :T, self._stored].cpu(),
        )

    def _uniforms(self, prompt: TokenPrompt) -> Tensor:
        """Draws that depend on seed and prompt only, so a resumed run gives the same answers. One is spare."""
        return uniforms(self._sampling.seed + int(prompt.id, 16) % 2**62, self._max_new + 1)

    def _ids(self, rows: list[list[int]]) -> Tensor:
        return torch.tensor(rows, device=self._backend.cache.keys_LSKCD.device)
