"""A whole training run: from samples to a drafter folder with its contract and record."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from draftwing.core.console import note, progress
from draftwing.drafter.checkpoint import save_drafter
from draftwing.drafter.config import DrafterConfig
from draftwing.drafter.initial import new_drafter, tap_scale
from draftwing.drafter.model import Drafter
from draftwing.drafter.vocabulary import VocabularyMap, most_frequent
from draftwing.formats.contract import Contract, DrafterContract
from draftwing.parallel.group import Group
from draftwing.target.config import TargetConfig
from draftwing.target.load import Target
from draftwing.train.dataset import SampleSource
from draftwing.train.loop import Trainer, TrainSettings
from draftwing.train.unroll import Teacher

CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True)
class Run:
    """What a run works on. `contract` is that of the samples."""

    target: Target
    source: SampleSource
    heldout: SampleSource | None
    contract: Contract
    settings: TrainSettings
    dtype: torch.dtype
    group: Group = Group()


def train(run: Run, out: Path) -> dict[str, Any]:
    """Train to the end, resuming from `out/checkpoint.pt` when it is there; returns the figures of the run."""
    vocabulary = most_frequent(run.source.response_counts(run.target.config.vocab_size), run.settings.draft_vocab_size)
    trainer = Trainer(
        _fresh(run, vocabulary),
        Teacher(run.target, vocabulary, run.dtype),
        vocabulary,
        run.settings,
        dtype=run.dtype,
        group=run.group,
    )
    checkpoint = out / CHECKPOINT
    if checkpoint.exists():
        trainer.load(checkpoint)
        note(f"Going on from {checkpoint}: epoch {trainer.progress.epoch + 1}, batch {trainer.progress.batch + 1}.")
    tokens = sum(run.source.lengths()) * run.settings.epochs
    with progress("train", tokens, "tokens") as meter:
        trainer.run(run.source, run.heldout, checkpoint, meter)
    last = trainer.progress.evaluations[-1] if trainer.progress.evaluations else {}
    if run.group.leads:
        contract = DrafterContract(
            capture=run.contract,
            vocab_map_digest=vocabulary.digest,
            trained_context=max(run.source.lengths()),
            train_depth=run.settings.depth,
            trained_tokens=trainer.progress.tokens,
            position_acceptances=tuple(last.get("position_acceptances", ())),
            accept_length=last.get("accept_length"),
        )
        save_drafter(out, trainer.drafter, vocabulary, contract, torch.bfloat16)
    return {
        "samples": len(run.source),
        "tokens_in_source": sum(run.source.lengths()),
        "trained_tokens": trainer.progress.tokens,
        "vocabulary_coverage": _coverage(run, vocabulary),
        "parameters": sum(parameter.numel() for parameter in trainer.drafter.parameters()),
        "evaluations": trainer.progress.evaluations,
        "losses": trainer.progress.losses,
    }


def _fresh(run: Run, vocabulary: VocabularyMap) -> Drafter:
    config = drafter_config(run.target.config, run.settings, len(run.contract.taps.boundaries))
    count = min(len(run.source), 32)
    states = torch.cat([run.source[number].states_TSH[:, :-1] for number in range(count)])
    weights = run.target.weights
    head_DH = weights.head[vocabulary.target_ids_D.to(weights.head.device)]
    drafter = new_drafter(
        config, head_DH.float().cpu(), weights.final_norm.float().cpu(), tap_scale(states), run.settings.seed
    )
    return drafter.to(weights.head.device)


def drafter_config(target: TargetConfig, settings: TrainSettings, taps: int) -> DrafterConfig:
    """A drafter shaped like one layer of its target."""
    return DrafterConfig(
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        taps=taps,
        heads=target.heads,
        kv_heads=target.kv_heads,
        head_dim=target.head_dim,
        intermediate_size=settings.intermediate_size or target.intermediate_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=settings.draft_vocab_size,
        norm_eps=target.norm_eps,
        max_context=target.max_context,
        rope=target.rope,
    )


def _coverage(run: Run, vocabulary: VocabularyMap) -> float:
    """Share of response tokens that the draft vocabulary holds."""
    counts = run.source.response_counts(run.target.config.vocab_size)
    return float(counts[vocabulary.target_ids_D].sum() / counts.sum())
