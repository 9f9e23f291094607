"""Samples and folders that are broken are refused in words that name what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftwing.core.errors import UserError
from draftwing.formats.features import INDEX, FeatureStore, FeatureWriter, Sample
from tests.formats.small import contract, sample


def _write(folder: Path, *samples: Sample) -> Path:
    writer = FeatureWriter(folder, contract())
    for one in samples:
        writer.add(one)
    writer.flush()
    return folder


@pytest.mark.parametrize(("state", "name"), [(0, "B_2"), (1, "B_4"), (2, "B_5"), (3, "B_8")])
@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda row: row.zero_(), "zero"),
        (lambda row: row[4:5].fill_(float("nan")), "NaN or infinite"),
        (lambda row: row[:1].fill_(float("inf")), "NaN or infinite"),
        (lambda row: row[:1].fill_(float("-inf")), "NaN or infinite"),
        (lambda row: row.fill_(float("nan")), "NaN or infinite"),
    ],
    ids=["zero", "nan", "inf", "minus-inf", "all-nan"],
)
def test_a_broken_row_is_refused_by_sample_token_and_boundary(
    tmp_path: Path, spoil: Callable[[Tensor], object], kind: str, state: int, name: str
) -> None:
    """T6. The samples before it are kept, it is not, and the next is taken."""
    writer = FeatureWriter(tmp_path, contract())
    writer.add(sample("good"))
    bad = sample("bad")
    spoil(bad.states_TSH[5, state])
    with pytest.raises(UserError, match=rf"Sample bad: the state {name} of token 5 is {kind}\."):
        writer.add(bad)
    writer.add(sample("next"))
    writer.flush()
    assert [one.id for one in FeatureStore(tmp_path)] == ["good", "next"]


def test_a_zero_value_in_a_row_is_no_fault(tmp_path: Path) -> None:
    one = sample("a")
    one.states_TSH[2, 1, :5] = 0
    assert len(FeatureStore(_write(tmp_path, one))) == 1


@pytest.mark.parametrize(("prompt", "amount"), [(7, "no"), (0, "only")])
def test_a_sample_without_both_parts_is_refused(prompt: int, amount: str) -> None:
    with pytest.raises(UserError, match=f"Sample x has {amount} response tokens"):
        sample("x", 7, prompt)


@pytest.mark.parametrize(
    "other",
    [
        contract(2, 4, 6),
        contract().model_copy(update={"capture_dtype": "float32"}),
        contract().model_copy(
            update={"target": contract().target.model_copy(update={"weights_fingerprint": "x" * 64})}
        ),
    ],
    ids=["taps", "dtype", "weights"],
)
def test_a_folder_of_another_contract_is_refused(tmp_path: Path, other: Any) -> None:
    _write(tmp_path, sample("a"))
    with pytest.raises(UserError, match=r"of another target or other taps.*another folder"):
        FeatureWriter(tmp_path, other)


def _shorten(folder: Path) -> None:
    """Fewer rows than the index says, in a file that is whole."""
    path = folder / "shard-00000.safetensors"
    save_file({name: tensor[:4].clone() for name, tensor in load_file(path).items()}, path)


def _drop_states(folder: Path) -> None:
    path = folder / "shard-00000.safetensors"
    save_file({name: tensor for name, tensor in load_file(path).items() if name != "states"}, path)


def _spoil(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """The second sample's tensors change in a file that is whole."""
    path = folder / "shard-00000.safetensors"
    held = load_file(path)
    change({name: tensor[7:] for name, tensor in held.items()})
    save_file(held, path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda held: held["states"][4, 1].zero_(), r"Sample b: the state B_4 of token 4 is zero\."),
        (lambda held: held["states"][4].fill_(float("nan")), "Sample b: the state B_2 of token 4 is NaN or infinite"),
        (lambda held: held["states"][4, 3, 1:2].mul_(2), "Sample b in .* is not what was written"),
        (lambda held: held["tokens"][2:3].add_(1), "Sample b in .* is not what was written"),
        (lambda held: held["mask"][2:3].fill_(1), "Sample b in .* is not what was written"),
        (lambda held: held["argmax"][6:7].add_(1), "Sample b in .* is not what was written"),
    ],
    ids=["zero", "nan", "state", "token", "mask", "argmax"],
)
def test_rows_that_changed_on_disk_are_refused_by_sample(
    tmp_path: Path, change: Callable[[dict[str, Tensor]], object], words: str
) -> None:
    folder = _write(tmp_path, sample("a"), sample("b"))
    _spoil(folder, change)
    store = FeatureStore(folder)
    assert store[0].id == "a"
    with pytest.raises(UserError, match=words):
        store[1]


def test_a_folder_from_before_there_were_digests_is_read(tmp_path: Path) -> None:
    folder = _write(tmp_path, sample("a"))
    _edit(folder, lambda raw: raw["shards"][0]["samples"][0].pop("digest"))
    assert len(list(FeatureStore(folder))) == 1


def _edit(folder: Path, change: Callable[[Any], object]) -> None:
    raw = json.loads((folder / INDEX).read_text())
    change(raw)
    (folder / INDEX).write_text(json.dumps(raw))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / INDEX).unlink(), r"There is no feature index at .*draftwing capture"),
        (shutil.rmtree, "There is no feature index"),
        (lambda folder: (folder / INDEX).write_text('{"version"'), "feature index at .* can not be read"),
        (lambda folder: (folder / INDEX).write_text("[]"), r"index\.json: file: "),
        (lambda folder: _edit(folder, lambda raw: raw.update(version=9)), r"index\.json: version: "),
        (lambda folder: _edit(folder, lambda raw: raw["shards"][0]["samples"][0].pop("start")), "samples.0.start"),
        (lambda folder: (folder / "shard-00000.safetensors").unlink(), "There is no tensor file .*shard-00000"),
        (lambda folder: (folder / "shard-00000.safetensors").write_bytes(b"x" * 30), "shard-00000.* can not be read"),
        pytest.param(_shorten, "shard-00000"),
        pytest.param(_drop_states, "shard-00000"),
    ],
    ids=[
        "no-index",
        "no-folder",
        "cut",
        "list",
        "version",
        "field",
        "no-shard",
        "damaged-shard",
        "short-shard",
        "no-states",
    ],
)
def test_a_broken_folder_is_refused_by_name(tmp_path: Path, spoil: Callable[[Path], object], words: str) -> None:
    folder = _write(tmp_path / "features", sample("a"))
    spoil(folder)
    with pytest.raises(UserError, match=words):
        list(FeatureStore(folder))
