"""Features on disk: what goes in comes out, once, ordered by id, from the file and not from memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwing.core.errors import UserError
from draftwing.formats import features
from draftwing.formats.features import INDEX, FeatureStore, FeatureWriter, Sample
from tests.formats.small import VOCAB, contract, sample


def _write(folder: Path, samples: list[Sample], shard_tokens: int = 20) -> Path:
    writer = FeatureWriter(folder, contract(), shard_tokens)
    for one in samples:
        writer.add(one)
    writer.flush()
    return folder


def _ids(folder: Path) -> list[str]:
    return [one.id for one in FeatureStore(folder)]


def _shards(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.safetensors"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_samples_come_back_as_they_were_ordered_by_id(tmp_path: Path, dtype: torch.dtype) -> None:
    """Written over several shards out of order, of unequal lengths."""
    samples = [sample(id, length, dtype=dtype) for id, length in (("c", 9), ("a", 30), ("d", 5), ("b", 12), ("e", 4))]
    store = FeatureStore(_write(tmp_path / "features", samples, shard_tokens=15))
    assert len(_shards(tmp_path / "features")) == 3
    assert store.contract == contract()
    assert len(store) == 5
    assert store.lengths() == [30, 12, 9, 5, 4]
    for back, put in zip(store, sorted(samples, key=lambda one: one.id), strict=True):
        assert back.id == put.id
        assert back.states_TSH.dtype == dtype
        for name in ("tokens_T", "mask_T", "argmax_T", "states_TSH"):
            assert torch.equal(getattr(back, name).to(getattr(put, name).dtype), getattr(put, name)), name


def test_order_is_by_id_as_text_and_not_by_arrival(tmp_path: Path) -> None:
    ids = ["req10", "req9", "req2", "0f", "00"]
    assert _ids(_write(tmp_path, [sample(id) for id in ids])) == sorted(ids)


def test_response_counts_are_of_responses_only(tmp_path: Path) -> None:
    samples = [sample(id, 20, prompt=15) for id in "abc"]
    counts = torch.zeros(VOCAB, dtype=torch.int64)
    for one in samples:
        for token in one.tokens_T[15:].tolist():
            counts[token] += 1
    assert torch.equal(FeatureStore(_write(tmp_path, samples)).response_counts(VOCAB), counts)


def test_a_second_writer_goes_on_where_the_first_stopped(tmp_path: Path) -> None:
    _write(tmp_path, [sample("a"), sample("b", 30)])
    writer = FeatureWriter(tmp_path, contract(), 20)
    assert writer.done == {"a", "b"}
    assert writer.tokens == 37
    with pytest.raises(ValueError, match="sample a is written already"):
        writer.add(sample("a"))
    writer.add(sample("c"))
    assert writer.tokens == 44
    with pytest.raises(ValueError, match="sample c is written already"):
        writer.add(sample("c"))
    writer.flush()
    writer.flush()
    assert _ids(tmp_path) == ["a", "b", "c"]
    assert [shard.file for shard in features.read_index(tmp_path).shards] == _shards(tmp_path)


def test_what_is_not_flushed_is_not_there(tmp_path: Path) -> None:
    writer = FeatureWriter(tmp_path, contract(), 1000)
    writer.add(sample("a"))
    with pytest.raises(UserError, match=r"holds no samples.*draftwing capture"):
        FeatureStore(tmp_path)
    assert FeatureWriter(tmp_path, contract()).done == set()


def test_a_kill_loses_no_more_than_two_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr(features.time, "monotonic", lambda: clock[0])
    writer = FeatureWriter(tmp_path, contract(), 1000)
    for id, seconds in (("a", 60), ("b", 61), ("c", 119), ("d", 0)):
        clock[0] += seconds
        writer.add(sample(id))
    assert _ids(tmp_path) == ["a", "b"]


def test_a_shard_that_the_index_does_not_list_is_ignored_and_replaced(tmp_path: Path) -> None:
    """A kill between shard and index: its samples are captured again and stand there once."""
    _write(tmp_path, [sample("a")])
    before = (tmp_path / INDEX).read_bytes()
    _write(tmp_path, [sample("b"), sample("c")])
    (tmp_path / INDEX).write_bytes(before)
    assert _ids(tmp_path) == ["a"]
    assert FeatureWriter(tmp_path, contract()).done == {"a"}
    _write(tmp_path, [sample("c"), sample("d", 5)])
    assert _ids(tmp_path) == ["a", "c", "d"]
    assert torch.equal(FeatureStore(tmp_path)[2].states_TSH, sample("d", 5).states_TSH)
    assert len(_shards(tmp_path)) == 2


@pytest.mark.parametrize("after", [False, True], ids=["before-the-index", "after-the-index"])
def test_a_flush_that_is_interrupted_and_repeated_writes_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """Ctrl-C while the index is written; capture then flushes again on its way out."""
    writer, real = FeatureWriter(tmp_path, contract()), features.write_json

    def interrupted(path: Path, content: Any) -> None:
        if after:
            real(path, content)
        raise KeyboardInterrupt

    writer.add(sample("a"))
    monkeypatch.setattr(features, "write_json", interrupted)
    with pytest.raises(KeyboardInterrupt):
        writer.flush()
    monkeypatch.setattr(features, "write_json", real)
    writer.flush()
    assert _ids(tmp_path) == ["a"]


def _resident(kind: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux")
def test_touching_a_large_store_grows_no_anonymous_memory(tmp_path: Path) -> None:
    """100 MB of states are read through the page cache: the process owns none of it."""
    states = torch.randn(250, 4, 2560, generator=torch.Generator().manual_seed(0)).bfloat16()
    writer = FeatureWriter(tmp_path, contract(), 10_000)
    for number in range(20):
        writer.add(replace(sample(f"{number:02}", 250), states_TSH=states))
    writer.flush()
    before, mapped = _resident("RssAnon"), _resident("RssFile")
    store = FeatureStore(tmp_path)
    total = sum(float(one.states_TSH.sum()) for one in store)
    assert total == pytest.approx(20 * float(states.sum()))
    assert _resident("RssFile") - mapped > 80e6, "the states were not touched, so this would prove nothing"
    assert _resident("RssAnon") - before < 15e6
