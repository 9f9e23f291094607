"""A training run: it learns, it weighs its steps, it reports what it did."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from draftwing.core.errors import UserError
from draftwing.formats.features import FeatureStore, Sample
from draftwing.train.batch import make_batch
from draftwing.train.loop import TrainSettings
from draftwing.train.loss import soft_cross_entropy_reference
from draftwing.train.unroll import Unroller
from tests.train.scenes import chain_sample, chain_store, frozen_target, quiet, store, trainer


@pytest.fixture
def texts(tmp_path: Path) -> FeatureStore:
    return chain_store(tmp_path / "features", 5)


def test_a_run_lowers_the_loss_and_raises_the_accept_length(texts: FeatureStore) -> None:
    run = trainer(epochs=12)
    before = run.evaluate(texts).cycles
    run.run(texts, None, None, quiet())
    after = run.evaluate(texts).cycles
    first, last = run.progress.losses[0], run.progress.losses[-1]
    assert all(end < 0.7 * start for start, end in zip(first, last, strict=True))
    assert before.accept_length < 1.5
    assert after.accept_length > 2.5
    assert after.position_acceptances[0] > 0.7


def test_progress_counts_what_was_seen(texts: FeatureStore) -> None:
    run = trainer(epochs=2)
    told: list[float] = []
    meter: Any = SimpleNamespace(advance=lambda amount, text="": told.append(amount), resume=told.append)
    figures = run.run(texts, texts, None, meter)
    progress = run.progress
    assert (progress.epoch, progress.batch) == (2, 0)
    assert progress.tokens == 2 * sum(texts.lengths()) == sum(told)
    assert all(len(losses) == 3 for losses in progress.losses)
    assert len(progress.evaluations) == 2
    assert figures is not None
    last = {
        "tokens": progress.tokens,
        "accept_length": figures.cycles.accept_length,
        "position_acceptances": figures.cycles.position_acceptances,
        "mean_over_positions": figures.mean_over_positions,
    }
    # By their repr: a figure that was not measured need not equal itself.
    assert repr(progress.evaluations[-1]) == repr(last)


def test_each_epoch_takes_every_sample_once_in_an_order_of_its_own_while_the_share_done_rises_to_one(
    texts: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, taken, shares = trainer(epochs=3, batch_tokens=1), [], []

    def note(source: FeatureStore, numbers: list[int], share: float) -> list[float]:
        taken.append(numbers)
        shares.append(share)
        return []

    monkeypatch.setattr(run, "train_batch", note)
    run.run(texts, None, None, quiet())
    epochs = [[number for numbers in taken[start : start + 5] for number in numbers] for start in (0, 5, 10)]
    assert all(sorted(order) == list(range(5)) for order in epochs)
    assert len({str(order) for order in epochs}) == 3
    assert shares == pytest.approx([(number + 1) / 15 for number in range(15)])


def by_hand(samples: list[Sample], step_weight: float) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Mean losses and gradients of one batch, all logits at once."""
    run = trainer()
    batch = make_batch(samples, run._vocabulary, 3)
    assert batch is not None
    weights = frozen_target().weights
    head = weights.head[run._vocabulary.target_ids_D]
    normed = torch.nn.functional.rms_norm(batch.teacher_states_PH, (20,), weights.final_norm, 1e-5)
    p = (normed @ head.T).softmax(-1)
    means = []
    for step, state in enumerate(Unroller(run.drafter, weights.embedding).states(batch, 3)):
        rows = batch.counts_JQ[step]
        normed = run.drafter.norm(state[rows])
        loss, _ = soft_cross_entropy_reference(normed, run.drafter.lm_head.weight, p, batch.learns_JQ[step][rows])
        means.append(loss / int(rows.sum()))
    sum(mean * step_weight**step for step, mean in enumerate(means)).backward()  # type: ignore[union-attr]
    return [mean.item() for mean in means], {name: w.grad for name, w in run.drafter.named_parameters()}


def test_an_update_follows_the_weighted_sum_of_each_steps_mean(
    texts: FeatureStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mean is over the rows that count at that step, of all samples together; step j weighs step_weight ** j."""
    run = trainer(step_weight=0.5, clip=1e9)
    monkeypatch.setattr(run._optimizer, "step", lambda share: None)
    losses = run.train_batch(texts, [0, 3, 1], share=0.5)
    wanted, gradients = by_hand([texts[number] for number in (0, 3, 1)], 0.5)
    assert losses == pytest.approx(wanted, rel=1e-5)
    for name, weight in run.drafter.named_parameters():
        torch.testing.assert_close(weight.grad, gradients[name], rtol=1e-4, atol=1e-6, msg=name)


def test_gradients_are_clipped_to_one_norm(texts: FeatureStore, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trainer(clip=0.25)
    monkeypatch.setattr(run._optimizer, "step", lambda share: None)
    run.train_batch(texts, [0, 1], share=0.5)
    norms = torch.stack([weight.grad.norm() for weight in run.drafter.parameters() if weight.grad is not None])
    assert norms.norm().item() == pytest.approx(0.25, rel=1e-4)


def test_a_batch_in_which_nothing_counts_changes_nothing(tmp_path: Path) -> None:
    run = trainer()
    before = {name: weight.clone() for name, weight in run.drafter.state_dict().items()}
    assert run.train_batch(store(tmp_path / "f", [chain_sample("short", 2, 3, 0)]), [0], 0.5) == [0.0, 0.0, 0.0]
    assert all(torch.equal(before[name], weight) for name, weight in run.drafter.state_dict().items())


def test_a_loss_that_is_not_finite_stops_the_run_and_leaves_the_last_checkpoint_whole(
    texts: FeatureStore, tmp_path: Path
) -> None:
    run, path = trainer(epochs=1), tmp_path / "checkpoint.pt"
    run.save(path)
    with torch.no_grad():
        run.drafter.fc.weight.fill_(float("nan"))
    with pytest.raises(UserError, match="no longer finite"):
        run.run(texts, None, path, quiet(), checkpoint_s=-1)
    again = trainer(epochs=1)
    again.load(path)
    assert bool(torch.isfinite(again.drafter.fc.weight).all())


@pytest.mark.parametrize(
    "changes", [{"epochs": 0}, {"depth": 0}, {"warmup": -0.1}, {"warmup": 1.0}, {"optimiser": "x"}]
)
def test_settings_that_make_no_sense_or_are_unknown_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TrainSettings(**changes)
