"""A drafter of a few hundred weights, its vocabulary and a contract, for tests that need no target."""

from __future__ import annotations

from typing import Any

import torch

from draftwing.drafter.config import DrafterConfig
from draftwing.drafter.model import Drafter
from draftwing.drafter.vocabulary import VocabularyMap
from draftwing.formats.contract import Contract, DrafterContract, Taps, TargetIdentity
from draftwing.ops.rope import Rope

TAPS = (2, 4, 5)


def small_config(**changes: Any) -> DrafterConfig:
    """Grouped heads, and no two sizes alike that a mistake could swap."""
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "target_hidden_size": 20,
        "taps": len(TAPS),
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 6,
        "intermediate_size": 28,
        "vocab_size": 40,
        "draft_vocab_size": 24,
        "norm_eps": 1e-5,
        "max_context": 64,
        "rope": Rope(theta=10000.0),
    }
    return DrafterConfig(**{**sizes, **changes})


def random_drafter(config: DrafterConfig, seed: int = 0) -> Drafter:
    """Every weight, norms too, away from its default."""
    generator = torch.Generator().manual_seed(seed)
    model = Drafter(config)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(1 + 0.2 * noise if weight.ndim == 1 else 1.5 * noise / weight.shape[1] ** 0.5)
    return model


def spread_vocabulary(config: DrafterConfig, seed: int = 0) -> VocabularyMap:
    """A random draft vocabulary: the ids do not lie side by side."""
    ids = torch.randperm(config.vocab_size, generator=torch.Generator().manual_seed(seed))
    return VocabularyMap(ids[: config.draft_vocab_size].sort().values, config.vocab_size)


def capture_contract(hidden_size: int = 20, vocab_size: int = 40) -> Contract:
    """What a capture of an imaginary 8-layer target would say."""
    identity = TargetIdentity(
        name="imaginary",
        layers=8,
        hidden_size=hidden_size,
        vocab_size=vocab_size,
        config_digest="c",
        weights_fingerprint="w",
        tokenizer_digest="t",
        template_digest="p",
    )
    return Contract(target=identity, taps=Taps(boundaries=TAPS), capture_dtype="float32")


def drafter_contract(vocabulary: VocabularyMap) -> DrafterContract:
    """The contract of a drafter with this vocabulary."""
    return DrafterContract(
        capture=capture_contract(vocab_size=vocabulary.vocab_size),
        vocab_map_digest=vocabulary.digest,
        trained_context=64,
        train_depth=3,
        trained_tokens=1000,
        position_acceptances=(0.5, 0.25, 0.125),
        accept_length=1.7,
    )
