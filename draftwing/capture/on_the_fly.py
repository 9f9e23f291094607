"""Features without a store: answers are kept as tokens, and the target runs again whenever a sample is wanted."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from draftwing.capture.prompts import Prompt
from draftwing.capture.record import record
from draftwing.capture.run import Source
from draftwing.core.console import note, progress
from draftwing.formats.answers import TokenAnswer, line_of, read_whole_lines
from draftwing.formats.features import Sample
from draftwing.target.backend import Backend


def collect_answers(path: Path, prompts: list[Prompt], source: Source) -> list[TokenAnswer]:
    """Answers of all prompts, read from `path` as far as it holds them, made and appended otherwise."""
    held = {answer.id: answer for answer in read_whole_lines(path)}
    left = [prompt for prompt in source.render(prompts) if prompt.id not in held]
    if held:
        note(f"{path} holds {len(held)} answers already; {len(left)} to go.")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file, progress("answers", max(len(left), 1), "answers") as meter:
        for sample in source.samples(prompts, left):
            answer = TokenAnswer(sample.id, sample.tokens_T.tolist(), sample.mask_T.tolist())
            held[answer.id] = answer
            # The leading newline parts this line from one that a kill cut off.
            file.write("\n" + line_of(answer))
            file.flush()
            meter.advance(1)
    return sorted(held.values(), key=lambda answer: answer.id)


class OnTheFly:
    """A `train.dataset.SampleSource` over known answers."""

    def __init__(self, backend: Backend, answers: list[TokenAnswer], taps: tuple[int, ...]) -> None:
        self._backend, self._answers, self._taps = backend, answers, taps

    def __len__(self) -> int:
        return len(self._answers)

    def __getitem__(self, number: int) -> Sample:
        answer = self._answers[number]
        return record(self._backend, answer.id, answer.tokens, answer.mask, self._taps)

    def lengths(self) -> list[int]:
        """Tokens of each sample."""
        return [len(answer.tokens) for answer in self._answers]

    def response_counts(self, vocab_size: int) -> Tensor:
        """How often each token id occurs in responses: counts [V]."""
        ids = [token for answer in self._answers for token, bit in zip(answer.tokens, answer.mask, strict=True) if bit]
        return torch.bincount(torch.tensor(ids), minlength=vocab_size)
