"""A contract and samples of a target that does not exist: 8 layers, width 6, taps B_2, B_4, B_5."""

from __future__ import annotations

import torch

from draftwing.formats.contract import Contract, DrafterContract, Taps, TargetIdentity
from draftwing.formats.features import Sample

WIDTH, STATES, VOCAB = 6, 4, 50


def identity(name: str = "tiny") -> TargetIdentity:
    return TargetIdentity(
        name=name,
        layers=8,
        hidden_size=WIDTH,
        vocab_size=VOCAB,
        config_digest="c" * 64,
        weights_fingerprint="w" * 64,
        tokenizer_digest="t" * 64,
        template_digest="p" * 64,
    )


def contract(*taps: int) -> Contract:
    return Contract(target=identity(), taps=Taps(boundaries=taps or (2, 4, 5)), capture_dtype="bfloat16")


def drafter_contract() -> DrafterContract:
    return DrafterContract(
        capture=contract(),
        vocab_map_digest="v" * 64,
        trained_context=512,
        train_depth=7,
        trained_tokens=1000,
        position_acceptances=(0.7, 0.6, 0.5),
        accept_length=2.1,
    )


def sample(id: str, length: int = 7, prompt: int = 3, dtype: torch.dtype = torch.bfloat16) -> Sample:
    """Random states; the seed is the id."""
    generator = torch.Generator().manual_seed(int.from_bytes(id.encode()[-6:], "big"))
    return Sample(
        id,
        torch.randint(0, VOCAB, (length,), generator=generator),
        torch.arange(length) >= prompt,
        torch.randint(0, VOCAB, (length,), generator=generator),
        torch.randn(length, STATES, WIDTH, generator=generator).to(dtype),
    )
