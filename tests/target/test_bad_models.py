"""Models that are missing, damaged or not understood: each is refused in words that name the cause."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftwing.core.errors import UserError
from draftwing.target.load import identity, load_target
from draftwing.target.tokenizer import Tokenizer
from tests.tiny import save_tiny

Mutation = Callable[[Path], object]
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


def _config(*absent: str, **changes: Any) -> Mutation:
    def mutate(folder: Path) -> None:
        config = {**json.loads((folder / "config.json").read_text()), **changes}
        (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in absent}))

    return mutate


def _rope(kind: str, **changes: Any) -> Mutation:
    return _config(rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **changes})


def _tensors(change: Callable[[dict[str, Tensor]], object]) -> Mutation:
    def mutate(folder: Path) -> None:
        tensors = load_file(folder / WEIGHTS)
        change(tensors)
        save_file(tensors, folder / WEIGHTS)

    return mutate


def _content(name: str, change: Callable[[bytes], bytes]) -> Mutation:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def _without(*names: str) -> Mutation:
    return lambda folder: [(folder / name).unlink() for name in names]


def _shards(folder: Path) -> None:
    """The same weights in two shards with an index."""
    tensors = load_file(folder / WEIGHTS)
    places = {name: "two.safetensors" if name.endswith("norm.weight") else "one.safetensors" for name in tensors}
    for shard in sorted(set(places.values())):
        save_file({name: tensors[name] for name, place in places.items() if place == shard}, folder / shard)
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))


def _all(*mutations: Mutation) -> Mutation:
    return lambda folder: [mutate(folder) for mutate in mutations]


def _index(content: object) -> Mutation:
    return lambda folder: (folder / INDEX).write_text(json.dumps(content))


def _other_head(tensors: dict[str, Tensor]) -> None:
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
Q_PROJ = "model.layers.3.self_attn.q_proj.weight"

BAD: dict[str, Any] = {
    "no folder": (shutil.rmtree, "There is no model folder .* Give a folder with config.json, a hub id"),
    "a file": (_all(shutil.rmtree, lambda folder: folder.write_text("x")), "There is no model folder"),
    "no config": (_without("config.json"), "There is no target config at .*config.json"),
    "broken config": (_content("config.json", lambda text: text[:-20]), "target config at .* can not be read"),
    "config not text": (_content("config.json", lambda _: b"\xff\xfe"), "target config at .* can not be read"),
    "config a list": (_content("config.json", lambda _: b"[]"), "config"),
    "no architecture": (_config("architectures"), "has the architecture none stated"),
    "other architecture": (_config(architectures=["GemmaForCausalLM"]), "GemmaForCausalLM.*Targets supported"),
    "unknown key": (_config(logit_scale=0.1), "not known here: logit_scale.*--ignore-config-key logit_scale"),
    "quantised": (_config(quantization_config={"bits": 4}), r"is quantised .* unquantised safetensors"),
    "other activation": (_config(hidden_act="gelu"), "uses the activation 'gelu'"),
    "no eps": (_config("rms_norm_eps"), "does not state rms_norm_eps"),
    "no layers": (_config("num_hidden_layers"), "does not state num_hidden_layers"),
    "no limit": (_config("max_position_embeddings"), "does not state max_position_embeddings"),
    "layers a word": (_config(num_hidden_layers="eight"), "num_hidden_layers"),
    "no base": (_config("rope_parameters"), "states no rope base"),
    "two bases": (_config(rope_theta=5e5), r"two rope bases, \[10000.0, 500000.0\]"),
    "unknown rope": (_rope("longrope"), "Rope of kind 'longrope' is not implemented"),
    "unknown rope key": (_rope("default", partial_rotary_factor=0.5), "rope has keys .* partial_rotary_factor"),
    "llama3 by halves": (_rope("llama3", factor=8.0), "llama3 lacks original_max_position, low_freq_factor, high"),
    "linear, no factor": (_rope("linear"), "lacks factor"),
    "yarn, no factor": (_rope("yarn", original_max_position_embeddings=64), "lacks factor"),
    "llama3, no factor": (_rope("llama3", **{**LLAMA3, "factor": None}), "lacks factor"),
    "factor a word": (_rope("linear", factor="two"), "factor"),
    "no weights": (_without(WEIGHTS), "holds no model.safetensors .* pickled weights are not loaded"),
    "cut weights": (_content(WEIGHTS, lambda whole: whole[:9999]), "can not be read .*incomplete or damaged"),
    "empty weights": (_content(WEIGHTS, lambda _: b""), "can not be read .*incomplete or damaged"),
    "corrupt header": (_content(WEIGHTS, lambda whole: whole[:8] + b"\xff" * 50 + whole[58:]), "can not be read"),
    "missing tensor": (_tensors(lambda held: held.pop(Q_PROJ)), f"lacks the tensor {Q_PROJ}"),
    "missing head": (_tensors(lambda held: held.pop("lm_head.weight")), "lacks the tensor lm_head.weight"),
    "leftover": (_tensors(lambda held: held.update(extra=torch.ones(2))), "holds 1 tensors .* first extra"),
    "bias left over": (_config(attention_bias=False, architectures=["Qwen2ForCausalLM"]), "lacks the tensor .*bias"),
    "wrong shape": (
        _tensors(lambda held: held.update({Q_PROJ: torch.ones(3)})),
        r"has shape \(3,\), the config says \(96",
    ),
    "other sizes": (_config(vocab_size=300), r"shape \(272, 48\), the config says \(300, 48\)"),
    "missing shard": (_all(_shards, _without("two.safetensors")), "There is no tensor file .*two.safetensors"),
    "index of more": (_index({"weight_map": {"model.norm.weight": WEIGHTS, "gone": WEIGHTS}}), "shards lack 1 .* gone"),
    "broken index": (lambda folder: (folder / INDEX).write_text("{"), "weight index at .* can not be read"),
    "index a list": (_index([]), "index"),
    "tied, other head": (
        _all(_config(tie_word_embeddings=True), _tensors(_other_head)),
        "ties head and embedding, the weights hold a different head.*tie_word_embeddings",
    ),
    "no tokenizer": (_without("tokenizer.json"), "has no usable tokenizer"),
    "broken tokenizer": (_content("tokenizer.json", lambda whole: whole[:100]), "has no usable tokenizer"),
    "no chat template": (_without("chat_template.jinja"), "has no chat template.*instruct model"),
    "broken template": (_content("chat_template.jinja", lambda _: b"{% for"), "The chat template refuses these"),
    "picky template": (
        _content("chat_template.jinja", lambda _: b"{{ raise_exception('no system role') }}"),
        "The chat template refuses these messages: no system role.*Check their roles",
    ),
}


def _use(folder: Path) -> None:
    """All that a command does with a model before it runs."""
    target, tokenizer = load_target(str(folder), "float32", "cpu"), Tokenizer(folder)
    identity(target, tokenizer)
    tokenizer.prompt([{"role": "system", "content": "x"}, {"role": "user", "content": "y"}])


@pytest.fixture
def folder(tmp_path: Path, tiny_folder: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "model"))


def test_the_model_is_good_before_it_is_mutated(folder: Path) -> None:
    _use(folder)


@pytest.mark.parametrize(("mutate", "words"), BAD.values(), ids=BAD.keys())
def test_a_bad_model_is_refused_by_name(folder: Path, mutate: Mutation, words: str) -> None:
    mutate(folder)
    with pytest.raises(UserError) as error:
        _use(folder)
    assert re.search(words, str(error.value).replace("\n", " ")), str(error.value)


def test_ignore_keys_settles_an_unknown_key_and_no_other(folder: Path) -> None:
    _config(logit_scale=0.1, scale_emb=2)(folder)
    load_target(str(folder), "float32", "cpu", ignore_keys=("logit_scale", "scale_emb"))
    with pytest.raises(UserError, match="not known here: scale_emb"):
        load_target(str(folder), "float32", "cpu", ignore_keys=("logit_scale",))


@pytest.mark.parametrize("name", ["nowhere", "./nowhere", "/nowhere", "~/nowhere", "a/b/c"])
def test_names_that_are_neither_folder_nor_hub_id(name: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"There is no model folder {name}.")):
        load_target(name)


def test_shards_give_the_same_weights(folder: Path) -> None:
    whole = load_target(str(folder), "float32", "cpu").weights
    _shards(folder)
    parts = load_target(str(folder), "float32", "cpu").weights
    assert parts.fingerprint == whole.fingerprint
    row = torch.randn(1, whole.embedding.shape[1], generator=torch.Generator().manual_seed(0))
    assert all(torch.equal(a.qkv(row), b.qkv(row)) for a, b in zip(parts.layers, whole.layers, strict=True))


def test_a_head_equal_to_the_embedding_may_lie_beside_it(tmp_path: Path) -> None:
    folder = save_tiny(tmp_path, tie_word_embeddings=True)
    _tensors(lambda held: held.update({"lm_head.weight": held["model.embed_tokens.weight"].clone()}))(folder)
    weights = load_target(str(folder), "float32", "cpu").weights
    assert weights.head is weights.embedding


def test_rope_buffers_of_old_checkpoints_are_harmless(folder: Path) -> None:
    _tensors(lambda held: held.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))(folder)
    _use(folder)


@pytest.mark.parametrize(
    "dtype",
    ["float32", "bfloat16", pytest.param("float16")],
)
def test_the_fingerprint_is_the_same_in_any_dtype(folder: Path, dtype: str) -> None:
    weights = load_target(str(folder), dtype, "cpu").weights
    assert str(weights.head.dtype) == f"torch.{dtype}"
    assert weights.fingerprint == load_target(str(folder), "float32", "cpu").weights.fingerprint
    _tensors(lambda held: held["model.norm.weight"][5:6].mul_(1.1))(folder)
    assert weights.fingerprint != load_target(str(folder), dtype, "cpu").weights.fingerprint
