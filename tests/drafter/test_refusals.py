"""Whatever a drafter folder lacks, states wrongly or leaves open is refused with a sentence that names it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftwing.core.errors import UserError
from draftwing.drafter.checkpoint import load_drafter, save_drafter
from draftwing.formats.contract import CONTRACT_FILE
from tests.drafter.small import drafter_contract, random_drafter, small_config, spread_vocabulary

Damage = Callable[[Path], None]
IDS = "eagle_aux_hidden_state_layer_ids"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A whole drafter folder."""
    config = small_config()
    vocabulary = spread_vocabulary(config)
    save_drafter(tmp_path, random_drafter(config), vocabulary, drafter_contract(vocabulary), torch.float32)
    return tmp_path


def load(folder: Path) -> object:
    return load_drafter(folder, torch.float32, torch.device("cpu"))


def config(**changes: Any) -> Damage:
    """Change keys of config.json; None takes one out."""

    def damage(folder: Path) -> None:
        path = folder / "config.json"
        raw = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))

    return damage


def nested(**changes: Any) -> Damage:
    """Add keys inside eagle_config."""
    return config(eagle_config={IDS: [1, 3, 4], "use_aux_hidden_state": True, **changes})


def contract(**changes: Any) -> Damage:
    """Change keys of contract.json."""

    def damage(folder: Path) -> None:
        path = folder / CONTRACT_FILE
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


def taps(*boundaries: int) -> Damage:
    """Other taps in the contract."""

    def damage(folder: Path) -> None:
        raw = json.loads((folder / CONTRACT_FILE).read_text())
        raw["capture"]["taps"]["boundaries"] = boundaries
        (folder / CONTRACT_FILE).write_text(json.dumps(raw))

    return damage


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Damage:
    """Change the checkpoint's tensors."""

    def damage(folder: Path) -> None:
        held = load_file(folder / "model.safetensors")
        change(held)
        save_file(held, folder / "model.safetensors")

    return damage


def truncate(name: str, share: float) -> Damage:
    def damage(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])

    return damage


def write(name: str, text: str) -> Damage:
    return lambda folder: (folder / name).write_text(text) and None


def remove(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def foreign(*further: Damage) -> Damage:
    """Without contract.json, then further changes."""

    def damage(folder: Path) -> None:
        (folder / CONTRACT_FILE).unlink()
        for step in further:
            step(folder)

    return damage


def other_members(held: dict[str, Tensor]) -> None:
    held["t2d"] = ~held["t2d"]


def absolute_ids(held: dict[str, Tensor]) -> None:
    """d2t as some write it: target ids where offsets are expected."""
    held["d2t"] = held["d2t"] + torch.arange(len(held["d2t"]))


CASES: dict[str, tuple[Damage, str]] = {
    "no config": (remove("config.json"), "no drafter config"),
    "config is not JSON": (truncate("config.json", 0.5), "can not be read"),
    "config is no object": (write("config.json", "[]"), "config"),
    "another architecture": (config(architectures=["LlamaForCausalLM"]), "architecture LlamaForCausalLM"),
    "no architecture": (config(architectures=None), "none stated"),
    "an unknown key": (config(medusa_heads=4), "medusa_heads"),
    "norm_before_residual": (config(norm_before_residual=True), "norm_before_residual"),
    "norm_before_fc": (config(norm_before_fc=True), "norm_before_fc"),
    "norm_output": (config(norm_output=True), "norm_output"),
    "fc_norm": (config(fc_norm=True), "fc_norm"),
    "attention_bias": (config(attention_bias=True), "attention_bias"),
    "mlp_bias": (config(mlp_bias=True), "mlp_bias"),
    "tie_word_embeddings": (config(tie_word_embeddings=True), "tie_word_embeddings"),
    "several layers": (config(num_hidden_layers=2), "num_hidden_layers 2"),
    "another activation": (config(hidden_act="gelu"), "hidden_act gelu"),
    "a switch inside eagle_config": (nested(norm_before_residual=True), "norm_before_residual"),
    "an unknown key inside eagle_config": (nested(residual_scale=2), "residual_scale"),
    "no use of the taps": (nested(use_aux_hidden_state=False), "use_aux_hidden_state"),
    "no norm epsilon": (config(rms_norm_eps=None), "rms_norm_eps"),
    "no context length": (config(max_position_embeddings=None), "max_position_embeddings"),
    "no rope base": (config(rope_theta=None, rope_parameters=None), "rope base"),
    "two rope bases": (config(rope_theta=99.0), "two rope bases"),
    "an unknown rope": (config(rope_parameters={"rope_theta": 10000.0, "rope_type": "dynamic"}), "dynamic"),
    "a size that is no number": (config(hidden_size="wide"), "hidden_size"),
    "a smaller vocabulary without d2t": (tensors(lambda held: held.pop("d2t")), "lacks the tensor d2t"),
    "d2t of another length": (config(draft_vocab_size=23), r"d2t has shape \(24,\)"),
    "d2t with absolute ids": (tensors(absolute_ids), "absolute ids"),
    "d2t and t2d that disagree": (tensors(other_members), "d2t and t2d"),
    "no lm_head": (tensors(lambda held: held.pop("lm_head.weight")), "lacks the tensor lm_head.weight"),
    "no norm": (tensors(lambda held: held.pop("midlayer.hidden_norm.weight")), "midlayer.hidden_norm.weight"),
    "a tensor left over": (tensors(lambda held: held.update(extra=torch.ones(1))), "first extra"),
    "weights of another width": (config(intermediate_size=29), "gate_proj.weight has shape"),
    "taps that fc is too narrow for": (taps(2, 3, 4, 5), "fc.weight has shape"),
    "foreign and no ids": (foreign(config(eagle_config=None, **{IDS: None})), "states no layer ids"),
    "no weights": (remove("model.safetensors"), "no model.safetensors"),
    "weights cut off in the middle": (truncate("model.safetensors", 0.5), "can not be read"),
    "weights cut off in the header": (truncate("model.safetensors", 0.01), "can not be read"),
    "empty weights": (truncate("model.safetensors", 0), "can not be read"),
    "contract that is not JSON": (truncate(CONTRACT_FILE, 0.5), "can not be read"),
    "contract of another version": (contract(version=2), "version"),
    "contract with an unknown field": (contract(fc_order="high to low"), "fc_order"),
    "contract of another map": (contract(vocab_map_digest="0"), "vocabulary map"),
    "no convention for foreign ids": (foreign(config(eagle_config=None)), "--taps-convention"),
    "two lists of foreign ids": (foreign(config(**{IDS: [2, 3, 5]})), "two lists of layer ids"),
    "two lists of unequal length": (foreign(config(**{IDS: [2, 4]})), "two lists of layer ids"),
    "a weight that is NaN": (tensors(lambda held: held["fc.weight"][2, 3].fill_(math.nan)), "fc.weight has entries"),
    "an infinite weight": (tensors(lambda held: held["norm.weight"][0].fill_(math.inf)), "norm.weight has entries"),
}


@pytest.mark.parametrize(("damage", "words"), CASES.values(), ids=CASES.keys())
def test_refused_by_name(folder: Path, damage: Damage, words: str) -> None:
    load(folder)
    damage(folder)
    with pytest.raises(UserError, match=words):
        load(folder)


def test_the_refusal_of_foreign_ids_lists_both_readings(folder: Path) -> None:
    """T2: never a guess; the user learns what the ids can mean and which option settles it."""
    foreign(config(eagle_config=None))(folder)
    with pytest.raises(UserError) as caught:
        load(folder)
    assert "B_2, B_4, B_5" in caught.value.problem
    assert "B_3, B_5, B_6" in caught.value.problem
    assert "--taps-convention boundary" in caught.value.remedy
    assert "--taps-convention output" in caught.value.remedy


def test_lists_that_settle_each_other_need_no_contract(folder: Path) -> None:
    """People upload two files of three: outputs in one list, boundaries in the other, leave one reading."""
    taps = load_drafter(folder, torch.float32, torch.device("cpu")).taps
    foreign()(folder)
    assert load_drafter(folder, torch.float32, torch.device("cpu")).taps == taps


@pytest.mark.parametrize("first", [0, 1, 2])
def test_no_first_id_settles_the_convention(folder: Path, first: int) -> None:
    """The heuristic 'outputs when the first id is 1' of another engine has no twin here."""
    foreign(config(eagle_config=None, **{IDS: [first, 4, 5]}))(folder)
    with pytest.raises(UserError, match="--taps-convention"):
        load(folder)


def test_switches_that_are_stated_and_off_are_accepted(folder: Path) -> None:
    config(norm_before_residual=False, fc_norm=False, norm_output=False, tie_word_embeddings=False)(folder)
    load(folder)
