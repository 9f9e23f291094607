"""Tiny targets with drafters for the law tests: a drafter that knows nothing, and one that is often right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from draftwing.drafter.checkpoint import LoadedDrafter
from draftwing.drafter.model import Drafter
from draftwing.drafter.vocabulary import VocabularyMap
from draftwing.engine.engine import Engine
from draftwing.target.config import TargetConfig
from draftwing.target.load import Target, load_target
from draftwing.target.tokenizer import Tokenizer
from draftwing.train.loop import TrainSettings
from draftwing.train.run import drafter_config
from tests.tiny import VOCAB

TAPS = (2, 4, 5)


def tiny_target(folder: Path) -> tuple[Target, Tokenizer]:
    """The tiny target with no end-of-text token, so that answers are as long as the tests want."""
    target = load_target(str(folder), "float32", "cpu")
    return replace(target, config=replace(target.config, eos_ids=())), Tokenizer(folder)


def random_drafter(config: TargetConfig, draft_vocab: int = VOCAB, seed: int = 0) -> LoadedDrafter:
    """Random weights: nearly every draft is wrong."""
    settings = TrainSettings(draft_vocab_size=draft_vocab)
    torch.manual_seed(seed)
    model = Drafter(drafter_config(config, settings, len(TAPS))).requires_grad_(False)
    ids = torch.randperm(config.vocab_size)[:draft_vocab].sort().values
    return LoadedDrafter(model, VocabularyMap(ids, config.vocab_size), TAPS, None)


class Oracle:
    """Stands in for a proposer: drafts the known continuation, each draft wrong with a given probability."""

    def __init__(self, texts: list[list[int]], wrong: float, seed: int = 0) -> None:
        self._texts, self._wrong = texts, wrong
        self._generator = torch.Generator().manual_seed(seed)
        self.length = 0

    def reset(self) -> None:
        self._fed: list[int] = []

    def propose(self, features_MF: torch.Tensor, next_tokens_M: torch.Tensor, num_steps: int) -> list[int]:
        self._fed += next_tokens_M.tolist()
        # The prompt's first token is never fed as a next token, so texts are compared from their second on.
        text = next(text for text in self._texts if text[1 : len(self._fed) + 1] == self._fed)
        ahead = (text[len(self._fed) + 1 :] + [0] * num_steps)[:num_steps]
        flips = torch.rand(num_steps, generator=self._generator) < self._wrong
        return [(token + 1) % VOCAB if flip else token for token, flip in zip(ahead, flips.tolist(), strict=True)]


def engine_with(
    target: Target,
    tokenizer: Tokenizer,
    drafter: LoadedDrafter,
    num_steps: int,
    oracle: Oracle | None = None,
    context: int = 400,
) -> Engine:
    engine = Engine(target.decoder(1, context), tokenizer, drafter, num_steps)
    if oracle is not None:
        replaced: Any = oracle
        engine._proposer = replaced
    return engine
