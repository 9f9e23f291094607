"""Tiny targets with drafters for the law tests: a drafter that knows nothing, and one that is often right."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import torch

from draftwing.drafter.checkpoint import LoadedDrafter
from draftwing.drafter.model import Drafter
from draftwing.drafter.vocabulary import VocabularyMap
from draftwing.engine.engine import Engine
from draftwing.engine.proposers.base import Ask, Proposer
from draftwing.engine.proposers.drafter import EagleProposer
from draftwing.engine.request import Answer, Request
from draftwing.engine.shape import Shape, chain
from draftwing.engine.tree import ROOT, Candidates
from draftwing.ops.sampling import choose, uniforms
from draftwing.target.backend import Backend
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
    """A proposer that knows the continuation: the true token of each place, left out with a given probability, among
    `width - 1` wrong ones, in any order and with chances that say nothing. Branches go on below wrong tokens too."""

    name = "oracle"
    taps: tuple[int, ...] = ()
    note: str | None = None

    def __init__(self, texts: list[list[int]], wrong: float, seed: int = 0) -> None:
        self._texts, self._wrong, self._random = texts, wrong, random.Random(seed)

    def begin(self, token: int) -> None:
        self.fed = [token]

    def extend(self, tokens: list[int], features_MF: torch.Tensor | None) -> None:
        self.fed += tokens

    def seconds(self) -> float:
        return 0.0

    def propose(self, ask: Ask) -> Candidates:
        out, draw = Candidates(self.name), self._random
        # None is left after a near tie that went the other way.
        text = next((text for text in self._texts if text[: len(self.fed)] == self.fed), None)
        if text is None:
            return out
        true_node: int | None = ROOT
        frontier = [ROOT]
        for depth in range(ask.depth):
            below: list[int] = []
            on, true_node = true_node, None
            for parent in frontier:
                known = parent == on and len(self.fed) + depth < len(text)
                true = text[len(self.fed) + depth] if known else -1
                tokens = [token for token in draw.sample(range(VOCAB), ask.width) if token != true]
                if known and draw.random() >= self._wrong:
                    tokens = [*tokens[: ask.width - 1], true]
                    draw.shuffle(tokens)
                for token in tokens:
                    if len(out.tokens) == ask.nodes:
                        return out
                    node = out.add(token, parent, draw.choice((0.2, 0.9 if ask.width == 1 else 0.5)))
                    below.append(node)
                    true_node = node if token == true else true_node
            others = [node for node in below if node != true_node]
            frontier = [*([] if true_node is None else [true_node]), *draw.sample(others, min(1, len(others)))]
        return out


class Fixed:
    """Proposes the same tokens whatever came before, as a greedy drafter might."""

    name = "fixed"
    taps: tuple[int, ...] = ()
    note: str | None = None

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = tokens

    def begin(self, token: int) -> None:
        self._at = 0

    def extend(self, tokens: list[int], features_MF: torch.Tensor | None) -> None:
        self._at += len(tokens) if self._at else 1

    def seconds(self) -> float:
        return 0.0

    def propose(self, ask: Ask) -> Candidates:
        out, parent = Candidates(self.name), ROOT
        for token in (self._tokens[self._at :] + self._tokens)[: ask.depth]:
            parent = out.add(token, parent, 0.5)
        return out


# Rounding between batch shapes in float32, measured by `test_rounding_between_batch_shapes_is_within_the_stated_bound`.
ROUNDING = 2e-4


def require_same(target: Target, request: Request, plain: Answer, speculative: Answer) -> None:
    """The same tokens, text and end; or they part at a near tie, where both tokens follow from logits that differ by
    less than ROUNDING. (A top-p border is a tie too: whether a token is inside moves every draw.)"""
    place = next((n for n, (a, b) in enumerate(zip(plain.tokens, speculative.tokens, strict=False)) if a != b), None)
    if place is None:
        assert speculative.tokens == plain.tokens
        assert (speculative.text, speculative.finish) == (plain.text, plain.finish)
        return
    backend = target.decoder(1, len(request.prompt) + place + 1)
    out = backend.forward(torch.tensor([[*request.prompt, *plain.tokens[:place]]]), range(1), logits="last")
    assert out.logits_BMV is not None
    moved = out.logits_BMV[0] + ROUNDING * (2 * torch.rand(500, VOCAB, generator=torch.Generator().manual_seed(0)) - 1)
    draws = uniforms(request.sampling.seed, place + 1)[-1:].expand(500)
    chosen = set(choose(moved, request.sampling, draws).tolist())
    assert {plain.tokens[place], speculative.tokens[place]} <= chosen, f"no near tie at token {place}"


def drafting(backend: Backend, drafter: LoadedDrafter) -> EagleProposer:
    """The drafter at work on a backend."""
    return EagleProposer(drafter, backend.embed, backend.cache.capacity)


def engine_with(
    target: Target,
    tokenizer: Tokenizer,
    drafter: LoadedDrafter | None,
    shape: int | Shape,
    *others: Proposer,
    context: int = 400,
) -> Engine:
    """An engine of a drafter, where there is one, and of other proposers; a number is a chain of so many steps."""
    backend = target.decoder(1, context)
    proposers = [*([drafting(backend, drafter)] if drafter else []), *others]
    return Engine(backend, tokenizer, proposers, chain(shape) if isinstance(shape, int) else shape)
