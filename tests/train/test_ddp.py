"""Two processes are one: the same losses as one process at the same global batch, the same weights in both."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwing.formats.features import FeatureStore
from draftwing.parallel.group import Group, join
from draftwing.train.batch import plan
from tests.train.scenes import chain_store, quiet, trainer
from tests.train.worker import CHANGES, gradients

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ddp") / "features"
    chain_store(folder, 7)
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def ranks(features: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes ended with, started with the environment that torchrun sets."""
    out = tmp_path_factory.mktemp("ranks")
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.train.worker", str(features), str(out)]
    started = [
        subprocess.Popen(
            command, cwd=ROOT, env={**os.environ, **world, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        for process in started:
            _, talk = process.communicate(timeout=90)
            assert process.returncode == 0, talk
    finally:
        for process in started:
            process.kill()
    assert (out / "checkpoint.pt").exists()
    return [torch.load(out / f"rank{rank}.pt") for rank in range(2)]


@pytest.mark.parametrize("count", [5, 1])
def test_gradients_are_those_of_all_samples_together(features: Path, ranks: list[dict[str, Any]], count: int) -> None:
    """Whatever each process holds of them: an odd number, or nothing in the second."""
    wanted = gradients(FeatureStore(features), [0, 1, 2, 3, 4] if count == 5 else [6])
    for rank in ranks:
        summed = rank[f"gradients of {count}"]
        assert summed.keys() == wanted.keys()
        for name, gradient in wanted.items():
            torch.testing.assert_close(summed[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


def test_losses_equal_those_of_one_process(features: Path, ranks: list[dict[str, Any]]) -> None:
    """Also where a batch has an odd number of samples, and where one process has none of them."""
    texts = FeatureStore(features)
    sizes = {len(batch) for epoch in range(2) for batch in plan(texts.lengths(), CHANGES["batch_tokens"], epoch)}
    assert {1, 3} <= sizes
    alone = trainer(**CHANGES)
    alone.run(texts, None, None, quiet())
    for rank in ranks:
        assert rank["size"] == 2
        assert len(rank["losses"]) == len(alone.progress.losses)
        for ours, theirs in zip(rank["losses"], alone.progress.losses, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-5)


def test_both_processes_end_with_the_same_weights(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["weights"] for rank in ranks)
    assert all(torch.equal(second[name], weight) for name, weight in first.items())
    assert ranks[0]["losses"] == ranks[1]["losses"]


def test_without_torchrun_a_process_is_a_group_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert join(torch.device("cpu")) == Group(0, 1)


def test_a_group_of_one_leaves_tensors_and_gradients_alone() -> None:
    group, tensor = Group(), torch.ones(3)
    weight, idle = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.tensor([1.0, 2.0])
    group.sum_gradients([weight, idle])
    group.close()
    assert group.leads
    assert group.sum(tensor) is tensor
    assert weight.grad.tolist() == [1.0, 2.0]
    assert idle.grad is None


@pytest.mark.skipif(sys.platform != "linux", reason="names of threads are read from /proc")
def test_no_thread_of_the_group_outlives_it(ranks: list[dict[str, Any]]) -> None:
    """One that frees a tensor while the interpreter ends aborts the process, after all its work is done."""
    for rank in ranks:
        assert rank["threads"]
        assert not [name for name in rank["threads"] if "gloo" in name]
