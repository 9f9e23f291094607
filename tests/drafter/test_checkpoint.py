"""Drafter folders: written and read back they are the same, and their config says what other engines need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwing.core.errors import UserError
from draftwing.drafter.checkpoint import LoadedDrafter, load_drafter, save_drafter
from draftwing.drafter.config import DrafterConfig
from draftwing.drafter.vocabulary import VocabularyMap
from draftwing.formats.contract import CONTRACT_FILE, DrafterContract
from draftwing.formats.tensors import TensorFolder
from draftwing.ops.rope import Rope
from tests.drafter.small import TAPS, drafter_contract, random_drafter, small_config, spread_vocabulary

CPU = torch.device("cpu")
LLAMA3 = Rope(
    theta=500000.0, kind="llama3", factor=8.0, original_max_position=32, low_freq_factor=1.0, high_freq_factor=4.0
)
YARN = Rope(theta=10000.0, kind="yarn", factor=4.0, original_max_position=16, beta_fast=30.0, truncate=False)
CONFIGS = {
    "plain": small_config(),
    "llama3 rope": small_config(rope=LLAMA3),
    "linear rope": small_config(rope=Rope(theta=10000.0, kind="linear", factor=2.5)),
    "yarn rope": small_config(rope=YARN),
    "head size that is not hidden / heads": small_config(head_dim=10),
    "target of the drafter's width": small_config(target_hidden_size=16),
    "whole vocabulary": small_config(draft_vocab_size=40),
}


def saved(folder: Path, config: DrafterConfig, dtype: torch.dtype = torch.float32) -> tuple[Any, Any, DrafterContract]:
    model, vocabulary = random_drafter(config), spread_vocabulary(config)
    contract = drafter_contract(vocabulary)
    save_drafter(folder, model, vocabulary, contract, dtype)
    return model, vocabulary, contract


def load(folder: Path, dtype: torch.dtype = torch.float32) -> LoadedDrafter:
    return load_drafter(folder, dtype, CPU)


def edit(folder: Path, **changes: Any) -> None:
    """Change keys of config.json; None takes one out."""
    path = folder / "config.json"
    raw = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in raw.items() if value is not None}))


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_a_saved_drafter_is_read_back_the_same(tmp_path: Path, config: DrafterConfig) -> None:
    model, vocabulary, contract = saved(tmp_path, config)
    loaded = load(tmp_path)
    assert loaded.model.config == config
    assert loaded.contract == contract
    assert loaded.taps == TAPS
    assert torch.equal(loaded.vocabulary.target_ids_D, vocabulary.target_ids_D)
    assert loaded.vocabulary.vocab_size == vocabulary.vocab_size
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.model.state_dict()[name], weight), name


def test_weights_are_stored_in_the_dtype_asked_for(tmp_path: Path) -> None:
    model, _, _ = saved(tmp_path, small_config(), torch.bfloat16)
    stored = TensorFolder(tmp_path).take("fc.weight", (16, 60))
    assert stored.dtype == torch.bfloat16
    assert torch.equal(stored, model.fc.weight.detach().bfloat16())
    assert load(tmp_path).model.fc.weight.dtype == torch.float32
    assert load(tmp_path, torch.bfloat16).model.fc.weight.dtype == torch.bfloat16
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"


def test_a_loaded_drafter_is_ready_to_run(tmp_path: Path) -> None:
    saved(tmp_path, small_config())
    model = load(tmp_path).model
    assert not model.training
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_config_states_boundaries_at_the_top_and_outputs_inside_eagle_config(tmp_path: Path) -> None:
    """vLLM reads the first list as boundaries, SGLang the second as outputs of layers: both mean B_2, B_4, B_5."""
    saved(tmp_path, small_config())
    raw = json.loads((tmp_path / "config.json").read_text())
    assert raw["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert raw["eagle_config"] == {"eagle_aux_hidden_state_layer_ids": [1, 3, 4], "use_aux_hidden_state": True}
    assert raw["architectures"] == ["LlamaForCausalLMEagle3"]


def test_the_checkpoint_holds_the_map_as_offsets_and_members_and_no_embedding(tmp_path: Path) -> None:
    model, vocabulary, _ = saved(tmp_path, small_config())
    tensors = TensorFolder(tmp_path)
    assert tensors.names() == {name for name, _ in model.named_parameters()} | {"d2t", "t2d"}
    assert torch.equal(tensors.take("d2t", (24,)), vocabulary.target_ids_D - torch.arange(24))
    assert tensors.take("t2d", (40,)).nonzero()[:, 0].tolist() == vocabulary.target_ids_D.tolist()


def test_the_contract_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that has a contract is whole, so an interrupted save must leave none."""

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("draftwing.drafter.checkpoint.write_json", stop)
    with pytest.raises(KeyboardInterrupt):
        saved(tmp_path, small_config())
    assert not (tmp_path / CONTRACT_FILE).exists()


def test_a_folder_from_elsewhere_has_no_contract_and_either_reading_of_its_ids(tmp_path: Path) -> None:
    """T2: the same list [2, 4, 5] is B_2 B_4 B_5 or, as outputs of layers, B_3 B_5 B_6."""
    saved(tmp_path, small_config())
    (tmp_path / CONTRACT_FILE).unlink()
    edit(tmp_path, eagle_config=None)
    boundary = load_drafter(tmp_path, torch.float32, CPU, "boundary")
    output = load_drafter(tmp_path, torch.float32, CPU, "output")
    assert (boundary.taps, output.taps) == ((2, 4, 5), (3, 5, 6))
    assert boundary.contract is None


def test_ids_inside_eagle_config_are_read_too(tmp_path: Path) -> None:
    saved(tmp_path, small_config())
    (tmp_path / CONTRACT_FILE).unlink()
    edit(tmp_path, eagle_aux_hidden_state_layer_ids=None)
    assert load_drafter(tmp_path, torch.float32, CPU, "output").taps == (2, 4, 5)
    assert load_drafter(tmp_path, torch.float32, CPU, "boundary").taps == (1, 3, 4)


def test_the_output_minus_one_is_the_embedding(tmp_path: Path) -> None:
    """T1: output of layer -1 is B_0."""
    saved(tmp_path, small_config())
    (tmp_path / CONTRACT_FILE).unlink()
    edit(tmp_path, eagle_config=None, eagle_aux_hidden_state_layer_ids=[-1, 3, 4])
    assert load_drafter(tmp_path, torch.float32, CPU, "output").taps == (0, 4, 5)


def test_where_there_is_a_contract_it_decides_and_not_the_ids(tmp_path: Path) -> None:
    saved(tmp_path, small_config())
    edit(tmp_path, eagle_aux_hidden_state_layer_ids=[1, 2, 3])
    assert load(tmp_path).taps == TAPS


def test_a_foreign_config_may_leave_out_what_follows_from_the_rest(tmp_path: Path) -> None:
    """Head size = hidden / heads, target width = drafter width, the rope base at the top."""
    config = small_config(head_dim=4, target_hidden_size=16)
    model, _, _ = saved(tmp_path, config)
    edit(tmp_path, head_dim=None, target_hidden_size=None, rope_parameters=None)
    assert load(tmp_path).model.config == config
    assert torch.equal(load(tmp_path).model.fc.weight, model.fc.weight)


def test_a_whole_vocabulary_needs_no_map(tmp_path: Path) -> None:
    """T8: without d2t every draft id is its own target id."""
    from safetensors.torch import load_file, save_file

    saved(tmp_path, small_config(draft_vocab_size=40))
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("d2t", None)
    tensors.pop("t2d", None)
    save_file(tensors, tmp_path / "model.safetensors")
    edit(tmp_path, draft_vocab_size=None)
    assert torch.equal(load(tmp_path).vocabulary.target_ids_D, torch.arange(40))


def test_weights_and_contract_of_different_runs_are_refused(tmp_path: Path) -> None:
    saved(tmp_path / "a", small_config())
    config = small_config()
    other: VocabularyMap = spread_vocabulary(config, seed=1)
    save_drafter(tmp_path / "b", random_drafter(config), other, drafter_contract(other), torch.float32)
    (tmp_path / "a" / CONTRACT_FILE).write_bytes((tmp_path / "b" / CONTRACT_FILE).read_bytes())
    with pytest.raises(UserError, match="not the one of its contract"):
        load(tmp_path / "a")
