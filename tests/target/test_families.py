"""Our decoder against transformers, float32: logits and every boundary, for each family and its variants.

Shapes: T tokens, A taps (here all boundaries 0..n), H hidden, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from draftwing.core.errors import UserError
from draftwing.target.decoder import Decoder
from draftwing.target.load import load_target
from tests.tiny import VOCAB, save_tiny

TOLERANCE = 1e-5
LENGTH = 40
GQA = {"num_attention_heads": 6, "num_key_value_heads": 2}
ODD = {"num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 8, "hidden_size": 72}


def _rope(kind: str, theta: float = 10000.0, **changes: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **changes}}


LLAMA3 = _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=64)
YARN = _rope("yarn", factor=4.0, original_max_position_embeddings=128)
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", GQA),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-attention-bias": ("llama", {"attention_bias": True}),
    "llama-mlp-bias": ("llama", {"mlp_bias": True}),
    "llama-every-head-its-own-keys": ("llama", {"num_attention_heads": 4, "num_key_value_heads": 4}),
    "llama-one-key-head": ("llama", {"num_attention_heads": 6, "num_key_value_heads": 1}),
    "llama-9-heads-over-3": ("llama", ODD),
    "llama-wide-heads": ("llama", {"head_dim": 32}),
    "llama-eps": ("llama", {"rms_norm_eps": 0.1}),
    "llama-linear": ("llama", _rope("linear", factor=2.5)),
    "llama-llama3": ("llama", LLAMA3),
    "llama-yarn": ("llama", YARN),
    "llama-base-of-smollm": ("llama", _rope("default", theta=100000.0)),
    "mistral": ("mistral", {}),
    "mistral-tied": ("mistral", {"tie_word_embeddings": True}),
    "mistral-yarn": ("mistral", YARN),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2-linear": ("qwen2", _rope("linear", factor=2.0)),
    "qwen3": ("qwen3", {}),
    "qwen3-tied": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3-attention-bias": ("qwen3", {"attention_bias": True}),
    "qwen3-9-heads-over-3": ("qwen3", ODD),
    "qwen3-yarn": ("qwen3", _rope("yarn", theta=1e6, factor=4.0)),
}


def _decoder(folder: Path) -> Decoder:
    return load_target(str(folder), "float32", "cpu").decoder()


def _reference(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def _tokens(count: int = LENGTH) -> Tensor:
    return torch.randint(0, VOCAB, (1, count), generator=torch.Generator().manual_seed(5))


def _error(ours: Tensor, theirs: Tensor) -> float:
    """Length of the difference over the length of the whole.

    Float32 alone explains up to 5e-6 here: both sides are that far from the same model in float64.
    """
    return float((ours - theirs).norm() / theirs.norm())


@torch.inference_mode()
def _hooked(model: PreTrainedModel, tokens: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
    """(logits, the outputs of every layer seen by forward hooks, the embedding output)."""
    outputs: list[Tensor] = []
    hooks = [
        layer.register_forward_hook(lambda _m, _a, out: outputs.append(out[0] if isinstance(out, tuple) else out))
        for layer in model.model.layers
    ]
    logits = model(tokens).logits
    for hook in hooks:
        hook.remove()
    return logits, outputs, model.model.embed_tokens(tokens)


@pytest.mark.parametrize(("family", "changes"), CASES.values(), ids=CASES.keys())
@torch.inference_mode()
def test_logits_and_every_boundary_equal_transformers(tmp_path: Path, family: str, changes: dict[str, Any]) -> None:
    """B_0..B_{n-1} are hidden_states[0..n-1]; B_n is the last layer's output: transformers shows only its norm."""
    folder = save_tiny(tmp_path / "model", family, **changes)
    decoder, model, tokens = _decoder(folder), _reference(folder), _tokens()
    n = decoder.config.layers
    out = decoder.forward(tokens, range(1), taps=tuple(range(n + 1)))
    theirs = model(tokens, output_hidden_states=True)
    _, layer_outputs, embedded = _hooked(model, tokens)
    assert out.taps_BMAH is not None
    assert out.logits_BMV is not None

    assert _error(out.logits_BMV, theirs.logits) < TOLERANCE
    assert torch.equal(out.taps_BMAH[:, :, 0], embedded)
    for boundary in range(n):
        assert _error(out.taps_BMAH[:, :, boundary], theirs.hidden_states[boundary]) < TOLERANCE, f"B_{boundary}"
    last = out.taps_BMAH[:, :, n]
    assert _error(last, layer_outputs[-1]) < TOLERANCE
    assert _error(model.model.norm(last), theirs.hidden_states[-1]) < TOLERANCE
    assert _error(last, theirs.hidden_states[-1]) > 0.01, "B_n is the state before the final norm"
    assert _error(decoder.head(last), theirs.logits) < TOLERANCE


def test_cases_differ_from_their_plain_family(tmp_path: Path) -> None:
    """Each switch of the table changes what transformers computes: a decoder that ignored one would be caught."""
    plain = _reference(save_tiny(tmp_path / "plain", "llama"))
    for name in ("llama-attention-bias", "llama-mlp-bias", "llama-eps", "llama-linear", "llama-llama3", "llama-yarn"):
        other = _reference(save_tiny(tmp_path / name, *CASES[name][:1], **CASES[name][1]))
        other.load_state_dict(plain.state_dict(), strict=False)
        with torch.inference_mode():
            assert _error(other(_tokens()).logits, plain(_tokens()).logits) > 100 * TOLERANCE, name


@torch.inference_mode()
def test_output_of_layer_k_is_boundary_k_plus_1(tiny_folder: Path) -> None:
    """T1: outputs of layers 2, 4, 6 are B_3, B_5, B_7 and hidden_states[3, 5, 7]; the output of "layer -1" is B_0."""
    decoder, model, tokens = _decoder(tiny_folder), _reference(tiny_folder), _tokens()
    theirs = model(tokens, output_hidden_states=True).hidden_states
    _, layer_outputs, embedded = _hooked(model, tokens)
    out = decoder.forward(tokens, range(1), taps=(0, 3, 5, 7))
    assert out.taps_BMAH is not None
    assert torch.equal(out.taps_BMAH[:, :, 0], embedded)
    for place, layer in enumerate((2, 4, 6), 1):
        assert _error(out.taps_BMAH[:, :, place], layer_outputs[layer]) < TOLERANCE
        assert _error(out.taps_BMAH[:, :, place], theirs[layer + 1]) < TOLERANCE
        assert _error(out.taps_BMAH[:, :, place], theirs[layer]) > 0.01, "the neighbour is another state"


@torch.inference_mode()
def test_the_last_boundary_is_a_tap_and_the_next_is_refused(tiny_folder: Path) -> None:
    """T3: taps up to n give as many states as taps; n + 1 is refused before anything runs."""
    decoder, tokens = _decoder(tiny_folder), _tokens()
    out = decoder.forward(tokens, range(1), taps=(4, 6, 8), logits="none")
    assert out.logits_BMV is None
    assert out.taps_BMAH is not None
    assert out.taps_BMAH.shape == (1, LENGTH, 3, decoder.config.hidden_size)
    _, layer_outputs, _ = _hooked(_reference(tiny_folder), tokens)
    assert _error(out.taps_BMAH[:, :, 2], layer_outputs[-1]) < TOLERANCE
    decoder.cache.rollback(0, 0)
    with pytest.raises(UserError, match=r"\[4, 6, 9\] do not fit a target of 8 layers"):
        decoder.forward(tokens, range(1), taps=(4, 6, 9))
    assert decoder.cache.lengths == [0]


@torch.inference_mode()
def test_last_row_logits_are_the_last_of_all_rows(tiny_folder: Path) -> None:
    decoder, tokens = _decoder(tiny_folder), _tokens()
    every = decoder.forward(tokens, range(1)).logits_BMV
    decoder.cache.rollback(0, 0)
    last = decoder.forward(tokens, range(1), logits="last").logits_BMV
    assert every is not None
    assert last is not None
    assert last.shape == (1, 1, VOCAB)
    assert _error(last, every[:, -1:]) < TOLERANCE


@torch.inference_mode()
def test_mistral_window_is_the_context_limit_and_exact_up_to_it(tmp_path: Path) -> None:
    """Up to `sliding_window` tokens full attention is what transformers computes; one further is not."""
    folder = save_tiny(tmp_path, "mistral", sliding_window=24)
    target, model = load_target(str(folder), "float32", "cpu"), _reference(folder)
    assert target.config.max_context == 24
    out = target.decoder().forward(_tokens(24), range(1)).logits_BMV
    assert out is not None
    assert _error(out, model(_tokens(24)).logits) < TOLERANCE
    with pytest.raises(UserError, match="25 tokens do not fit a context of 24"):
        target.decoder().forward(_tokens(25), range(1))
    no_window = _reference(save_tiny(tmp_path / "wide", "mistral"))
    assert _error(model(_tokens(25)).logits[:, -1], no_window(_tokens(25)).logits[:, -1]) > TOLERANCE
