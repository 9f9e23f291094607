"""Drafter folders: `config.json` and `model.safetensors` in the plain form that SGLang and vLLM read, and our contract.

The layer ids in config.json are for those engines; Draftwing itself reads the contract. A folder without one is
from elsewhere, and its ids mean nothing until the user says by which convention they were written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from draftwing.core.errors import UserError
from draftwing.drafter.config import DrafterConfig
from draftwing.drafter.model import Drafter
from draftwing.drafter.vocabulary import VocabularyMap, from_offsets
from draftwing.formats.contract import CONTRACT_FILE, DrafterContract, read_drafter_contract, write_contract
from draftwing.formats.files import read_object, write_json
from draftwing.formats.tensors import TensorFolder, save_tensors
from draftwing.ops.rope import rope_from_config

Convention = Literal["boundary", "output"]
IDS = "eagle_aux_hidden_state_layer_ids"

_HARMLESS = frozenset(
    """architectures model_type torch_dtype dtype use_cache bos_token_id eos_token_id pad_token_id initializer_range
    attention_dropout pretraining_tp transformers_version num_hidden_layers tie_word_embeddings hidden_act
    attention_bias mlp_bias rope_theta rope_scaling rope_parameters eagle_config norm_before_residual norm_before_fc
    norm_output fc_norm""".split()
) | {IDS}
# Switches of other systems that change numbers; this model file has them off.
_MUST_BE_OFF = (
    "norm_before_residual",
    "norm_before_fc",
    "norm_output",
    "fc_norm",
    "attention_bias",
    "mlp_bias",
    "tie_word_embeddings",
)
_RENAMED = {
    "hidden_size": "hidden_size",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "intermediate_size",
    "vocab_size": "vocab_size",
    "rms_norm_eps": "norm_eps",
    "max_position_embeddings": "max_context",
}
_OPTIONAL = {"head_dim", "draft_vocab_size", "target_hidden_size"}


@dataclass(frozen=True)
class LoadedDrafter:
    """A drafter ready to run, and what it must be fed. `contract` is None for a folder from elsewhere."""

    model: Drafter
    vocabulary: VocabularyMap
    taps: tuple[int, ...]
    contract: DrafterContract | None


def save_drafter(
    folder: Path, model: Drafter, vocabulary: VocabularyMap, contract: DrafterContract, dtype: torch.dtype
) -> None:
    """Write a drafter folder; contract.json is last, so a folder that has it is whole."""
    tensors = {name: weight.detach().to("cpu", dtype) for name, weight in model.named_parameters()}
    if model.config.draft_vocab_size < model.config.vocab_size:
        tensors["d2t"], tensors["t2d"] = vocabulary.offsets_D, vocabulary.member_V
    save_tensors(folder / "model.safetensors", tensors)
    write_json(folder / "config.json", _config_json(model.config, contract.capture.taps.boundaries, dtype))
    write_contract(folder, contract)


def _config_json(config: DrafterConfig, taps: tuple[int, ...], dtype: torch.dtype) -> dict[str, Any]:
    rope = {"rope_theta": config.rope.theta, "rope_type": config.rope.kind}
    if config.rope.kind != "default":
        rope |= {
            key: value
            for key, value in config.rope.model_dump(exclude_none=True).items()
            if key not in {"theta", "kind"}
        }
        if config.rope.original_max_position is not None:
            rope["original_max_position_embeddings"] = rope.pop("original_max_position")
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        **{key: getattr(config, ours) for key, ours in _RENAMED.items()},
        "head_dim": config.head_dim,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rope_parameters": rope,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "norm_before_residual": False,
        "torch_dtype": str(dtype).removeprefix("torch."),
        # vLLM reads the top-level list as boundaries; SGLang the nested one, as outputs (Llama and Qwen targets).
        IDS: list(taps),
        "eagle_config": {IDS: [tap - 1 for tap in taps], "use_aux_hidden_state": True},
    }


def load_drafter(
    folder: Path, dtype: torch.dtype, device: torch.device, convention: Convention | None = None
) -> LoadedDrafter:
    """Load a drafter folder. Raises UserError for whatever is missing, left over, damaged or not stated."""
    raw = read_object(
        folder / "config.json",
        "drafter config",
        "Give a drafter folder: config.json, model.safetensors, contract.json.",
    )
    architecture = (raw.get("architectures") or ["none stated"])[0]
    if architecture != "LlamaForCausalLMEagle3":
        raise UserError(
            f"{folder} has the architecture {architecture}.",
            "An EAGLE-3 drafter in plain form says LlamaForCausalLMEagle3.",
        )
    contract = read_drafter_contract(folder) if (folder / CONTRACT_FILE).exists() else None
    taps = contract.capture.taps.boundaries if contract else _foreign_taps(raw, folder, convention)
    config = _config_of(raw, len(taps), folder)
    source = TensorFolder(folder)
    if config.draft_vocab_size < config.vocab_size:
        vocabulary = from_offsets(source.take("d2t", (config.draft_vocab_size,)), config.vocab_size)
        if "t2d" in source.names() and not torch.equal(
            source.take("t2d", (config.vocab_size,)).bool(), vocabulary.member_V
        ):
            raise UserError(
                f"{folder}: d2t and t2d are not the same map.", "The checkpoint is damaged: export it again."
            )
    else:
        vocabulary = VocabularyMap(torch.arange(config.vocab_size), config.vocab_size)
    model = Drafter(config).to(device, dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            weight = source.take(name, tuple(parameter.shape))
            if not torch.isfinite(weight).all():
                raise UserError(
                    f"{folder}: the tensor {name} has entries that are NaN or infinite.",
                    "No draft of it would ever be right: take an earlier checkpoint, or train it again.",
                )
            parameter.copy_(weight)
    source.require_nothing_left()
    if contract and contract.vocab_map_digest != vocabulary.digest:
        raise UserError(
            f"{folder}: the vocabulary map is not the one of its contract.",
            "Weights and contract are from different runs.",
        )
    return LoadedDrafter(model.freeze(), vocabulary, taps, contract)


def _foreign_taps(raw: dict[str, Any], folder: Path, convention: Convention | None) -> tuple[int, ...]:
    nested = _nested(raw).get(IDS)
    ids = nested or raw.get(IDS)
    if not ids:
        raise UserError(
            f"{folder} states no layer ids and has no contract.json.",
            "Ask its author for the boundaries that it was trained on.",
        )
    if nested and raw.get(IDS) and _settle_each_other(raw[IDS], nested):
        return tuple(raw[IDS])
    if nested and raw.get(IDS) and nested != raw[IDS]:
        raise UserError(
            f"{folder} states two lists of layer ids, {raw[IDS]} and {nested}, and has no contract.json.",
            "Keep the one that is right in config.json.",
        )
    if convention is None:
        outputs = ", ".join(f"B_{number + 1}" for number in ids)
        raise UserError(
            f"{folder} has the layer ids {ids} and no contract.json: they can mean the boundaries "
            f"{', '.join(f'B_{number}' for number in ids)} (vLLM, llama.cpp) or the outputs of these layers, "
            f"{outputs} (SGLang, SpecForge, ModelOpt).",
            "Say which: --taps-convention boundary or --taps-convention output.",
        )
    return tuple(number + (convention == "output") for number in ids)


def _settle_each_other(top: list[Any], nested: list[Any]) -> bool:
    """True for lists as `save_drafter` writes them: boundaries on top, and the outputs of the layers below them."""
    numbers = all(type(number) is int for number in (*top, *nested))
    return numbers and len(top) == len(nested) and all(a == b + 1 for a, b in zip(top, nested, strict=True))


def _nested(raw: dict[str, Any]) -> dict[str, Any]:
    nested = raw.get("eagle_config") or {}
    if not isinstance(nested, dict):
        raise UserError("The drafter's eagle_config is no object.", "Mend it in config.json.")
    return nested


def _config_of(raw: dict[str, Any], taps: int, folder: Path) -> DrafterConfig:
    nested = _nested(raw)
    unknown = sorted(set(raw) - _HARMLESS - set(_RENAMED) - _OPTIONAL)
    unknown += sorted(set(nested) - {IDS, "use_aux_hidden_state", *_MUST_BE_OFF})
    if unknown:
        raise UserError(
            f"{folder}: config.json has keys that are not known here: {', '.join(unknown)}.",
            "Remove those that change nothing.",
        )
    switched = [name for name in _MUST_BE_OFF if raw.get(name) or nested.get(name)]
    if nested.get("use_aux_hidden_state", True) is not True:
        switched.append("use_aux_hidden_state off")
    if switched or raw.get("num_hidden_layers", 1) != 1 or raw.get("hidden_act", "silu") != "silu":
        what = (
            ", ".join(switched)
            or f"num_hidden_layers {raw.get('num_hidden_layers')}, hidden_act {raw.get('hidden_act')}"
        )
        raise UserError(
            f"{folder} was trained with {what}, which is not implemented.",
            "Only the published EAGLE-3 layer runs here.",
        )
    missing = sorted(set(_RENAMED) - set(raw))
    if missing:
        raise UserError(f"{folder}: config.json does not state {', '.join(missing)}.", "Add what it was trained with.")
    for key in (*_RENAMED, *_OPTIONAL & set(raw)):
        if isinstance(raw[key], bool) or not isinstance(raw[key], int | float):
            raise UserError(f"{folder}: config.json says {key} is {raw[key]!r}.", "It must be a number.")
    sizes = {ours: raw[key] for key, ours in _RENAMED.items()}
    return DrafterConfig(
        **sizes,
        target_hidden_size=raw.get("target_hidden_size") or raw["hidden_size"],
        taps=taps,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
        draft_vocab_size=raw.get("draft_vocab_size") or raw["vocab_size"],
        rope=rope_from_config(raw),
    )
