"""The training loop: batches in, a drafter and its figures out; resumes bit for bit from its last checkpoint."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from draftwing.core.console import Meter
from draftwing.core.errors import UserError
from draftwing.drafter.model import Drafter
from draftwing.drafter.vocabulary import VocabularyMap
from draftwing.formats.files import digest_of, whole_file
from draftwing.parallel.group import Group
from draftwing.train.align import Loops, repeated
from draftwing.train.batch import make_batch, plan
from draftwing.train.dataset import SampleSource
from draftwing.train.evaluate import HeldOut, evaluate
from draftwing.train.optimizer import Optimizer
from draftwing.train.unroll import LaterRows, Teacher, Unroller, chain_losses


class TrainSettings(BaseModel):
    """What a run does. Step weights are step_weight ** j for step j; `later_rows` as in `chain_losses`.

    With `loops` "twice" no token counts from the third repetition of a period on (`align.repeated`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    epochs: int = Field(3, ge=1)
    depth: int = Field(5, ge=1)
    step_weight: float = Field(0.8, gt=0, allow_inf_nan=False)
    later_rows: LaterRows = "all"
    loops: Loops = "all"
    batch_tokens: int = Field(4096, ge=1)
    draft_vocab_size: int = Field(8192, ge=1)
    intermediate_size: int | None = None
    muon_lr: float = Field(0.02, ge=0, allow_inf_nan=False)
    adam_lr: float = Field(1e-3, ge=0, allow_inf_nan=False)
    weight_decay: float = Field(0.0, ge=0, allow_inf_nan=False)
    warmup: float = Field(0.02, ge=0, lt=1)
    clip: float = Field(1.0, gt=0, allow_inf_nan=False)
    seed: int = 0


def step_weights(base: float, depth: int) -> list[float]:
    """base ** j for step j, kept between 1e-30 and 1e30: beyond, float32 has only 0 and infinity for it.

    A step that weighs 1e-30 moves nothing, and its loss can still be told.
    """
    return [min(max(base**step, 1e-30), 1e30) for step in range(depth)]


@dataclass
class Progress:
    """Where a run stands, and what it has seen."""

    epoch: int = 0
    batch: int = 0
    tokens: int = 0
    losses: list[list[float]] = field(default_factory=list)
    evaluations: list[dict[str, Any]] = field(default_factory=list)


class Trainer:
    """Trains one drafter on one source of samples."""

    def __init__(
        self,
        drafter: Drafter,
        teacher: Teacher,
        vocabulary: VocabularyMap,
        settings: TrainSettings,
        *,
        dtype: torch.dtype,
        group: Group | None = None,
    ) -> None:
        self.drafter, self.progress = drafter, Progress()
        self._teacher, self._vocabulary, self._settings, self._dtype = teacher, vocabulary, settings, dtype
        self._group = group or Group()
        self._unroller = Unroller(drafter, teacher.embedding_VH)
        self._optimizer = Optimizer(drafter, settings.muon_lr, settings.adam_lr, settings.weight_decay, settings.warmup)
        self._weights_J = torch.tensor(
            step_weights(settings.step_weight, settings.depth),
            dtype=torch.float64,
            device=teacher.embedding_VH.device,
        )

    def run(
        self,
        source: SampleSource,
        heldout: SampleSource | None,
        checkpoint: Path | None,
        meter: Meter,
        checkpoint_s: float = 300,
    ) -> HeldOut | None:
        """Train to the end from wherever `progress` stands; returns the last held-out figures."""
        settings, progress = self._settings, self.progress
        lengths, saved, figures = source.lengths(), time.monotonic(), None
        passes = [plan(lengths, settings.batch_tokens, settings.seed + epoch) for epoch in range(settings.epochs)]
        total, done = sum(map(len, passes)), sum(map(len, passes[: progress.epoch])) + progress.batch
        meter.resume(progress.tokens)
        while progress.epoch < settings.epochs:
            batches = passes[progress.epoch]
            while progress.batch < len(batches):
                numbers = batches[progress.batch]
                tokens = sum(lengths[number] for number in numbers)
                losses = self.train_batch(source, numbers, (done + 1) / total)
                done, progress.batch, progress.tokens = done + 1, progress.batch + 1, progress.tokens + tokens
                progress.losses.append(losses)
                meter.advance(
                    tokens, f"epoch {progress.epoch + 1}, losses {' '.join(f'{loss:.3f}' for loss in losses)}"
                )
                if checkpoint and time.monotonic() - saved > checkpoint_s:
                    self.save(checkpoint)
                    saved = time.monotonic()
            progress.epoch, progress.batch = progress.epoch + 1, 0
            if heldout is not None:
                figures = self.evaluate(heldout)
                self._note(figures)
            if checkpoint:
                self.save(checkpoint)
        if figures is None and heldout is not None:
            # A finished run taken up again: measured anew, noted already.
            figures = self.evaluate(heldout)
        return figures

    def train_batch(self, source: SampleSource, numbers: list[int], share: float) -> list[float]:
        """One update from the samples `numbers` of all processes; returns the mean loss of each step."""
        mine = [source[number] for number in numbers[self._group.rank :: self._group.size]]
        if self._settings.loops == "twice":
            mine = [replace(sample, mask_T=sample.mask_T.bool() & ~repeated(sample.tokens_T)) for sample in mine]
        depth, device = self._settings.depth, self._teacher.embedding_VH.device
        batch = make_batch(mine, self._vocabulary, depth)
        sums = torch.zeros(2, depth, dtype=torch.float64, device=device)
        counts_J = torch.zeros(depth, dtype=torch.float64, device=device)
        if batch is not None:
            batch = batch.to(device, self._dtype)
            counts_J = batch.counts_JQ.sum(1).double()
        counts_J = self._group.sum(counts_J)
        if not counts_J.any():
            return [0.0] * depth
        if batch is not None:
            teacher_PV = self._teacher.probabilities(batch.teacher_states_PH)
            # The mean over all rows that could count: a row that is left out weighs nothing, the others no more.
            weights_J = (self._weights_J / counts_J.clamp(min=1)).tolist()
            losses = chain_losses(self._unroller, batch, teacher_PV, weights_J, self._settings.later_rows)
            losses.weighted.backward()
            sums = torch.stack([losses.loss_J, losses.counted_J])
        parameters = list(self.drafter.parameters())
        self._group.sum_gradients(parameters)
        torch.nn.utils.clip_grad_norm_(parameters, self._settings.clip)
        self._optimizer.step(share)
        loss_J, rows_J = self._group.sum(sums)
        mean_J = loss_J / rows_J.clamp(min=1)
        if not torch.isfinite(mean_J).all():
            raise UserError(
                "The loss is no longer finite.",
                "Lower --muon-lr or --adam-lr, or train in float32; the last checkpoint is whole.",
            )
        return [float(loss) for loss in mean_J]

    def evaluate(self, heldout: SampleSource) -> HeldOut:
        """Walk the held-out samples."""
        samples = (heldout[number] for number in range(len(heldout)))
        return evaluate(self.drafter, self._teacher, self._vocabulary, samples, self._settings.depth, self._dtype)

    def _note(self, figures: HeldOut) -> None:
        self.progress.evaluations.append(
            {
                "tokens": self.progress.tokens,
                "accept_length": figures.cycles.accept_length,
                "position_acceptances": figures.cycles.position_acceptances,
                "mean_over_positions": figures.mean_over_positions,
            }
        )

    def save(self, path: Path) -> None:
        """Write a checkpoint atomically (the leading process only)."""
        if not self._group.leads:
            return
        state = {
            "settings": self._settings_digest(),
            "drafter": self.drafter.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "progress": vars(self.progress),
        }
        with whole_file(path) as temporary:
            torch.save(state, temporary)

    def load(self, path: Path) -> None:
        """Take up a checkpoint; UserError when it is damaged or of a run with other settings."""
        try:
            state = torch.load(path, weights_only=True, map_location=self._teacher.embedding_VH.device)
        except (OSError, RuntimeError, EOFError, ValueError, LookupError, UnpicklingError) as error:
            raise UserError(f"The checkpoint {path} can not be read ({error}).", "Delete it to start again.") from None
        if not isinstance(state, dict) or state.get("settings") != self._settings_digest():
            raise UserError(
                f"The checkpoint {path} is of a run with other settings or another vocabulary.",
                "Repeat them, or choose another output folder.",
            )
        self.drafter.load_state_dict(state["drafter"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.progress = Progress(**state["progress"])

    def _settings_digest(self) -> str:
        return digest_of(
            {
                **self._settings.model_dump(),
                "vocabulary": self._vocabulary.digest,
                "drafter": self.drafter.config.model_dump(),
            }
        )
