"""A whole capture: prompts in, a features folder out, resumable at any moment."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch

from draftwing.capture.prompts import Prompt
from draftwing.capture.record import record, render_with_mask, require_answered
from draftwing.capture.regenerate import Regenerator, TokenPrompt, in_groups
from draftwing.core.console import note, progress
from draftwing.core.errors import UserError
from draftwing.formats.answers import TokenAnswer
from draftwing.formats.contract import Contract
from draftwing.formats.features import FeatureWriter, Sample
from draftwing.formats.files import require_room
from draftwing.ops.sampling import Sampling
from draftwing.target.backend import Backend
from draftwing.target.tokenizer import Tokenizer


@dataclass(frozen=True)
class CaptureSettings:
    """How much to answer, and how."""

    max_prompt_tokens: int = 512
    max_new_tokens: int = 256
    sampling: Sampling = Sampling()
    keep_answers: bool = False

    def __post_init__(self) -> None:
        for name in ("max_prompt_tokens", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} is {getattr(self, name)}.", "It must be 1 or more.")

    @property
    def context(self) -> int:
        """Cache capacity that one sample needs."""
        return self.max_prompt_tokens + self.max_new_tokens


class SampleMaker(Protocol):
    """Where `capture` gets its samples from: `Source`, or `Answered`."""

    @property
    def new_tokens(self) -> int:
        """The most tokens that a sample has beyond its rendered prompt."""
        ...

    def render(self, prompts: Iterable[Prompt]) -> list[TokenPrompt]:
        """What there is to do, as token ids."""
        ...

    def samples(self, prompts: list[Prompt], rendered: list[TokenPrompt]) -> Iterator[Sample]:
        """Yield one sample to each of `rendered`."""
        ...


class Answered:
    """Samples of answers that are known as token ids; prompts have no part in it."""

    new_tokens = 0

    def __init__(self, backend: Backend, answers: list[TokenAnswer], taps: tuple[int, ...]) -> None:
        self._backend, self._taps = backend, taps
        self._answers = {answer.id: answer for answer in answers}

    def render(self, prompts: Iterable[Prompt]) -> list[TokenPrompt]:
        """Whole conversations; those that are too long for the target's cache are left out, and their number said."""
        limit = self._backend.cache.capacity
        kept = [TokenPrompt(id, answer.tokens) for id, answer in self._answers.items() if len(answer.tokens) <= limit]
        if len(kept) < len(self._answers):
            note(f"Left out {len(self._answers) - len(kept)} answers that are longer than {limit} tokens.")
        return kept

    def samples(self, prompts: list[Prompt], rendered: list[TokenPrompt]) -> Iterator[Sample]:
        """Yield one sample to each of `rendered`."""
        for item in rendered:
            yield record(self._backend, item.id, item.tokens, self._answers[item.id].mask, self._taps)


class Source:
    """Samples of prompts: regenerated answers, or answers that the file holds. One pass each time it is iterated."""

    def __init__(
        self, backend: Backend, tokenizer: Tokenizer, taps: tuple[int, ...], settings: CaptureSettings
    ) -> None:
        self._backend, self._tokenizer, self._taps, self._settings = backend, tokenizer, taps, settings
        self._masks: dict[str, list[bool]] = {}

    @property
    def new_tokens(self) -> int:
        """The most tokens that a sample has beyond its rendered prompt."""
        return 0 if self._settings.keep_answers else self._settings.max_new_tokens

    def render(self, prompts: Iterable[Prompt]) -> list[TokenPrompt]:
        """Prompts as token ids; those that are too long or can not be rendered are left out, and their number is said.

        Raises UserError when none is left.
        """
        settings = self._settings
        limit = settings.context if settings.keep_answers else settings.max_prompt_tokens
        kept, long, refused = [], 0, []
        for prompt in prompts:
            try:
                tokens = self._rendered(prompt)
            except UserError as error:
                refused.append((prompt, error))
                continue
            if len(tokens) <= limit:
                kept.append(TokenPrompt(prompt.id, tokens))
            else:
                long += 1
        if long:
            note(f"Left out {long} prompts that are longer than {limit} tokens.")
        if not kept and not refused:
            raise UserError(
                "Every prompt is longer than the limit.", "Raise --max-prompt-tokens, or give shorter prompts."
            )
        if not kept:
            raise refused[0][1]
        _say_refused(refused)
        return kept

    def _rendered(self, prompt: Prompt) -> list[int]:
        messages = list(prompt.messages)
        if not self._settings.keep_answers:
            return self._tokenizer.prompt(messages)
        require_answered(messages)
        tokens, self._masks[prompt.id] = render_with_mask(self._tokenizer, messages)
        return tokens

    def samples(self, prompts: list[Prompt], rendered: list[TokenPrompt]) -> Iterator[Sample]:
        """Yield one sample to each rendered prompt."""
        if not self._settings.keep_answers:
            worker = Regenerator(self._backend, self._taps, self._settings.max_new_tokens, self._settings.sampling)
            yield from worker.run(in_groups(rendered))
            return
        for item in rendered:
            yield record(self._backend, item.id, item.tokens, self._masks[item.id], self._taps)


def _say_refused(refused: list[tuple[Prompt, UserError]]) -> None:
    """Name the first few, and count them all."""
    for prompt, error in refused[:3]:
        start = " ".join(prompt.messages[0]["content"].split())[:40]
        note(f"Left out {prompt.id} ({prompt.messages[0]['role']}: {start!r} ...): {error.problem}")
    if refused:
        note(f"Left out {len(refused)} prompts that can not be used.")


def capture(folder: Path, prompts: list[Prompt], source: SampleMaker, contract: Contract) -> int:
    """Write features of all prompts to `folder`, skipping what it holds already; returns tokens held at the end."""
    writer = FeatureWriter(folder, contract)
    rendered = source.render(prompts)
    left = [prompt for prompt in rendered if prompt.id not in writer.done]
    if len(left) < len(rendered):
        note(f"{folder} holds {len(rendered) - len(left)} of these {len(rendered)} samples already; going on.")
    most = sum(len(prompt.tokens) + source.new_tokens for prompt in left)
    values = (len(contract.taps.boundaries) + 1) * contract.target.hidden_size
    size = getattr(torch, contract.capture_dtype).itemsize
    require_room(folder, most * (values * size + 9), note)
    wanted = {prompt.id for prompt in left}
    try:
        with progress("capture", len(left), "samples") as meter:
            for sample in source.samples(prompts, left):
                wanted.discard(sample.id)
                writer.add(sample)
                meter.advance(1, f"{writer.tokens:,} tokens")
    finally:
        # Ctrl-C included: what is whole is kept.
        writer.flush()
    if wanted:
        raise RuntimeError(f"{len(wanted)} prompts yielded no sample, first {sorted(wanted)[0]}")
    return writer.tokens
