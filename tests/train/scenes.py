"""Small worlds for the training tests.

`noise` makes samples whose every number is random, for tests of indices. `chain_sample` makes samples of a target
that always continues token x with successor(x) and is sure of it, so that a few updates teach a drafter to follow.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from draftwing.core.console import Meter
from draftwing.drafter.config import DrafterConfig
from draftwing.drafter.initial import new_drafter
from draftwing.drafter.vocabulary import VocabularyMap
from draftwing.formats.contract import Contract
from draftwing.formats.features import FeatureStore, FeatureWriter, Sample
from draftwing.parallel.group import Group
from draftwing.train.loop import Trainer, TrainSettings
from draftwing.train.unroll import Teacher
from tests.drafter.small import TAPS, capture_contract, small_config, spread_vocabulary

VOCAB, HIDDEN = 40, 20
CONFIG = small_config(hidden_size=HIDDEN, draft_vocab_size=30)


def noise(mask: list[int], seed: int = 0, vocab: int = VOCAB, id: str = "noise") -> Sample:
    """A sample with this mask and random tokens, choices and states."""
    generator = torch.Generator().manual_seed(seed)
    mask_T = torch.tensor(mask, dtype=torch.uint8)
    T = len(mask)
    tokens = torch.randint(vocab, (T,), generator=generator)
    argmax = torch.where(mask_T.bool(), torch.randint(vocab, (T,), generator=generator), -1)
    return Sample(id, tokens, mask_T, argmax, torch.randn(T, len(TAPS) + 1, HIDDEN, generator=generator))


def _table(seed: int) -> Tensor:
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(seed))


def frozen_target() -> Any:
    """The parts of a target that a Teacher reads."""
    weights = SimpleNamespace(embedding=_table(1), head=_table(2), final_norm=torch.ones(HIDDEN))
    return SimpleNamespace(weights=weights, config=SimpleNamespace(norm_eps=1e-5))


def vocabulary(config: DrafterConfig = CONFIG) -> VocabularyMap:
    return spread_vocabulary(config)


def chain_sample(id: str, prompt: int, length: int, start: int) -> Sample:
    """`length` tokens that walk through the draft vocabulary in a shuffled order, from place `start` on."""
    ids = vocabulary().target_ids_D
    order = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(3))]
    tokens = order[(torch.arange(length) + start) % len(order)]
    following = order[(torch.arange(length) + start + 1) % len(order)]
    mask = torch.arange(length) >= prompt
    states = [_table(10 + tap)[tokens] for tap in range(len(TAPS))]
    # The head row of the token to come is the state that the head likes best.
    last = frozen_target().weights.head[following]
    return Sample(id, tokens, mask.to(torch.uint8), torch.where(mask, following, -1), torch.stack([*states, last], 1))


def store(folder: Path, samples: list[Sample], contract: Contract | None = None) -> FeatureStore:
    """A features folder of these samples."""
    writer = FeatureWriter(folder, contract or capture_contract(HIDDEN, VOCAB))
    for sample in samples:
        writer.add(sample)
    writer.flush()
    return FeatureStore(folder)


def chain_store(folder: Path, count: int, first: int = 0) -> FeatureStore:
    """Samples of unlike lengths, some of them too short or too long to share a batch evenly."""
    return store(folder, [chain_sample(f"s{n}", 2 + n % 3, 10 + 3 * n, 7 * n) for n in range(first, first + count)])


def settings(**changes: Any) -> TrainSettings:
    """Quick to learn and short."""
    usual = {"epochs": 2, "depth": 3, "batch_tokens": 40, "draft_vocab_size": 30, "muon_lr": 0.05, "adam_lr": 0.01}
    return TrainSettings(**{**usual, **changes})


def trainer(group: Group | None = None, map_: VocabularyMap | None = None, **changes: Any) -> Trainer:
    """A trainer of a fresh drafter of the chain's target; the same weights each time."""
    target, kept = frozen_target(), map_ or vocabulary()
    head = target.weights.head[kept.target_ids_D]
    drafter = new_drafter(CONFIG, head, target.weights.final_norm, torch.ones(len(TAPS)), seed=0)
    teacher = Teacher(target, kept, torch.float32)
    return Trainer(drafter, teacher, kept, settings(**changes), dtype=torch.float32, group=group)


def quiet() -> Meter:
    """A meter that nobody sees."""
    meter: Any = SimpleNamespace(advance=lambda amount, text="": None, resume=lambda amount: None)
    return meter


def stopping_after(reports: int) -> Meter:
    """A meter that breaks the run off at its n-th report."""
    left = [reports]

    def advance(amount: float, text: str = "") -> None:
        left[0] -= 1
        if left[0] == 0:
            raise KeyboardInterrupt

    meter: Any = SimpleNamespace(advance=advance, resume=advance)
    return meter
