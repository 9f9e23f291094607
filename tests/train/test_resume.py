"""A run that was stopped and resumed is the run that was not: weights, losses and figures, bit for bit."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from draftwing.core.errors import UserError
from draftwing.drafter.vocabulary import VocabularyMap
from draftwing.formats.features import FeatureStore
from draftwing.parallel.group import Group
from draftwing.train.loop import Trainer
from tests.drafter.small import spread_vocabulary
from tests.train.scenes import CONFIG, chain_store, quiet, stopping_after, trainer


@pytest.fixture
def texts(tmp_path: Path) -> FeatureStore:
    return chain_store(tmp_path / "train", 5)


@pytest.fixture
def heldout(tmp_path: Path) -> FeatureStore:
    return chain_store(tmp_path / "heldout", 2, first=1)


def interrupted(path: Path, texts: FeatureStore, heldout: FeatureStore, batches: int) -> Trainer:
    """Broken off while `batches` are in the checkpoint and one more is done but lost; taken up by a new trainer."""
    run = trainer()
    with pytest.raises(KeyboardInterrupt):
        # The first report is the one of the start.
        run.run(texts, heldout, path, stopping_after(batches + 2), checkpoint_s=-1)
    again = trainer()
    again.load(path)
    return again


def require_same(ours: Trainer, theirs: Trainer) -> None:
    """Bit for bit: a number's repr is its own alone, and a figure that does not exist equals itself."""
    assert repr(ours.progress) == repr(theirs.progress)
    for name, weight in theirs.drafter.state_dict().items():
        assert torch.equal(ours.drafter.state_dict()[name], weight), name


@pytest.mark.parametrize("batches", [1, 2, 3, 4, 5])
def test_a_resumed_run_equals_one_that_was_not_interrupted(
    texts: FeatureStore, heldout: FeatureStore, tmp_path: Path, batches: int
) -> None:
    whole = trainer()
    figures = whole.run(texts, heldout, None, quiet())
    assert len(whole.progress.losses) == 6
    resumed = interrupted(tmp_path / "checkpoint.pt", texts, heldout, batches)
    assert len(resumed.progress.losses) == batches
    assert repr(resumed.run(texts, heldout, tmp_path / "checkpoint.pt", quiet())) == repr(figures)
    require_same(resumed, whole)


def test_a_resumed_run_tells_its_meter_what_was_done_before(
    texts: FeatureStore, heldout: FeatureStore, tmp_path: Path
) -> None:
    resumed = interrupted(tmp_path / "checkpoint.pt", texts, heldout, 2)
    before = resumed.progress.tokens
    told: list[float] = []
    known: list[float] = []
    meter: Any = SimpleNamespace(advance=lambda amount, text="": told.append(amount), resume=known.append)
    resumed.run(texts, heldout, None, meter)
    assert known == [before]
    assert before > 0
    assert before + sum(told) == 2 * sum(texts.lengths())


def test_a_finished_run_taken_up_again_does_nothing_and_still_knows_its_figures(
    texts: FeatureStore, heldout: FeatureStore, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.pt"
    run = trainer()
    figures = run.run(texts, heldout, path, quiet())
    again = trainer()
    again.load(path)
    assert repr(again.run(texts, heldout, path, quiet())) == repr(figures)
    require_same(again, run)


@pytest.mark.parametrize(
    "changes",
    [{"seed": 1}, {"depth": 2}, {"epochs": 3}, {"muon_lr": 0.01}, {"batch_tokens": 41}, {"step_weight": 0.7}],
    ids=lambda changes: next(iter(changes)),
)
def test_a_checkpoint_of_other_settings_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    trainer().save(tmp_path / "checkpoint.pt")
    trainer().load(tmp_path / "checkpoint.pt")
    with pytest.raises(UserError, match="other settings"):
        trainer(**changes).load(tmp_path / "checkpoint.pt")


def test_a_checkpoint_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    """T9: the head's rows mean other tokens."""
    other: VocabularyMap = spread_vocabulary(CONFIG, seed=1)
    trainer(map_=other).save(tmp_path / "checkpoint.pt")
    with pytest.raises(UserError, match="another vocabulary"):
        trainer().load(tmp_path / "checkpoint.pt")


def foreign() -> bytes:
    """A whole file of torch that is no checkpoint of a run."""
    data = io.BytesIO()
    torch.save({"weights": torch.ones(3)}, data)
    return data.getvalue()


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.3, 0.999])
def test_a_truncated_checkpoint_is_refused(tmp_path: Path, share: float) -> None:
    path = tmp_path / "checkpoint.pt"
    trainer().save(path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(UserError, match="can not be read"):
        trainer().load(path)


@pytest.mark.parametrize("data", [b"x", b"no checkpoint", bytes(5000), foreign()], ids=["x", "text", "zeros", "other"])
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(data)
    with pytest.raises(UserError):
        trainer().load(tmp_path / "checkpoint.pt")


def test_a_missing_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="can not be read"):
        trainer().load(tmp_path / "none.pt")


def test_only_the_leading_process_writes(tmp_path: Path) -> None:
    trainer(group=Group(1, 2)).save(tmp_path / "checkpoint.pt")
    assert list(tmp_path.iterdir()) == []
    trainer(group=Group(0, 2)).save(tmp_path / "checkpoint.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]
