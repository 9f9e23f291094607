"""The tiny target at work: prompts, its greedy answers with their features, and drafters for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from draftwing.capture.record import record
from draftwing.drafter.checkpoint import LoadedDrafter
from draftwing.drafter.config import DrafterConfig
from draftwing.drafter.model import Drafter
from draftwing.drafter.vocabulary import VocabularyMap, most_frequent
from draftwing.engine.engine import Engine
from draftwing.engine.request import Request
from draftwing.formats.contract import Contract, Taps
from draftwing.formats.features import Sample
from draftwing.target.decoder import Decoder
from draftwing.target.load import Target, identity, load_target
from draftwing.target.tokenizer import Tokenizer
from draftwing.train.loop import TrainSettings
from draftwing.train.run import drafter_config
from tests.drafter.small import TAPS

CONTEXT = 160


@dataclass(frozen=True)
class World:
    """A loaded tiny target with a cache for one sequence."""

    target: Target
    tokenizer: Tokenizer
    decoder: Decoder

    def answer(self, prompt: list[int], length: int) -> list[int]:
        """What the target says, without a drafter."""
        return Engine(self.decoder, self.tokenizer).generate(Request(tuple(prompt), length)).tokens

    def record(self, id: str, turns: list[tuple[list[int], list[int]]]) -> Sample:
        """The features of a conversation of (prompt, answer) turns."""
        tokens = [token for turn in turns for part in turn for token in part]
        mask = [kind == 1 for turn in turns for kind, part in enumerate(turn) for _ in part]
        return record(self.decoder, id, tokens, mask, TAPS)

    def config(self, draft_vocab_size: int) -> DrafterConfig:
        settings = TrainSettings(draft_vocab_size=draft_vocab_size)
        return drafter_config(self.target.config, settings, len(TAPS))

    def contract(self) -> Contract:
        """What a capture of this target says."""
        target = identity(self.target, self.tokenizer)
        return Contract(target=target, taps=Taps(boundaries=TAPS), capture_dtype="float32")

    def vocabulary(self, samples: list[Sample], size: int) -> VocabularyMap:
        said = torch.cat([sample.tokens_T[sample.mask_T.bool()] for sample in samples])
        return most_frequent(torch.bincount(said, minlength=self.target.config.vocab_size), size)


def open_world(folder: Path) -> World:
    target = load_target(str(folder), "float32", "cpu")
    return World(target, Tokenizer(folder), target.decoder(1, CONTEXT))


def loaded(model: Drafter, vocabulary: VocabularyMap) -> LoadedDrafter:
    """A drafter ready for the engine."""
    return LoadedDrafter(model.eval().requires_grad_(False), vocabulary, TAPS, None)


def random_prompt(length: int, seed: int) -> list[int]:
    tokens: list[int] = torch.randint(256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return tokens
