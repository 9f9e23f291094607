"""A whole run on the tiny target: what it leaves in its folder, and what it says of itself."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwing.drafter.checkpoint import load_drafter
from draftwing.formats.features import FeatureStore
from draftwing.train.loop import Trainer, TrainSettings
from draftwing.train.run import CHECKPOINT, Run, drafter_config, train
from tests.drafter.small import TAPS
from tests.train.scenes import stopping_after, store
from tests.train.tiny_world import World, open_world, random_prompt

SETTINGS = TrainSettings(epochs=2, depth=2, batch_tokens=60, draft_vocab_size=64, muon_lr=0.05, adam_lr=0.01)


@pytest.fixture(scope="module")
def world(tiny_folder: Path) -> World:
    torch.set_num_threads(1)
    return open_world(tiny_folder)


@pytest.fixture(scope="module")
def run(world: World, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four answers to learn from, one of them held out as well."""
    prompts = [random_prompt(3 + seed, 20 + seed) for seed in range(4)]
    samples = [world.record(f"s{n}", [(prompt, world.answer(prompt, 20))]) for n, prompt in enumerate(prompts)]
    folder, contract = tmp_path_factory.mktemp("run"), world.contract()
    heldout = store(folder / "heldout", samples[:1], contract)
    source = store(folder / "train", samples, contract)
    return Run(world.target, source, heldout, contract, SETTINGS, torch.float32)


@pytest.fixture(scope="module")
def finished(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("out")
    return out, train(run, out)


def test_a_run_leaves_a_drafter_that_loads_with_its_contract(run: Run, finished: tuple[Path, dict[str, Any]]) -> None:
    out, figures = finished
    drafter = load_drafter(out, torch.float32, torch.device("cpu"))
    contract = drafter.contract
    assert contract is not None
    assert contract.capture == run.contract
    assert drafter.taps == TAPS
    assert contract.vocab_map_digest == drafter.vocabulary.digest
    assert (contract.train_depth, contract.trained_context) == (2, max(run.source.lengths()))
    assert contract.trained_tokens == figures["trained_tokens"] == 2 * sum(run.source.lengths())
    assert contract.accept_length == figures["evaluations"][-1]["accept_length"]
    assert drafter.model.config == drafter_config(run.target.config, run.settings, len(TAPS))


def test_figures_are_json_that_any_reader_takes(run: Run, tmp_path: Path) -> None:
    """A drafter that learned nothing never reaches its later drafts: what was not measured is null, never NaN."""
    still = TrainSettings(**{**SETTINGS.model_dump(), "epochs": 1, "depth": 4, "muon_lr": 1e-9, "adam_lr": 1e-9})
    figures = train(replace(run, settings=still), tmp_path)
    json.loads(
        (tmp_path / "contract.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} in contract.json")
    )
    json.dumps(figures, allow_nan=False)


def test_figures_say_what_was_done(run: Run, finished: tuple[Path, dict[str, Any]]) -> None:
    _, figures = finished
    assert figures["samples"] == 4
    assert figures["tokens_in_source"] == sum(run.source.lengths())
    assert len(figures["evaluations"]) == 2
    assert all(len(losses) == 2 for losses in figures["losses"])
    counts = run.source.response_counts(run.target.config.vocab_size)
    assert figures["vocabulary_coverage"] == pytest.approx(
        float(counts.sort(descending=True).values[:64].sum() / counts.sum())
    )


def test_a_finished_run_repeated_gives_the_same_figures_and_drafter(
    run: Run, finished: tuple[Path, dict[str, Any]]
) -> None:
    out, figures = finished
    before = {name: (out / name).read_bytes() for name in ("model.safetensors", "contract.json", "config.json")}
    assert repr(train(run, out)) == repr(figures)
    assert before == {name: (out / name).read_bytes() for name in before}


def test_a_run_that_was_broken_off_goes_on_from_the_checkpoint_in_its_folder(
    run: Run, finished: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, figures = finished
    batches = len(figures["losses"]) // 2
    with monkeypatch.context() as patch:
        # Two reports into the second epoch; the first report of all is that of the start.
        patch.setattr("draftwing.train.run.progress", lambda *_: nullcontext(stopping_after(batches + 3)))
        with pytest.raises(KeyboardInterrupt):
            train(run, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]
    done = torch.load(tmp_path / CHECKPOINT)["progress"]
    assert (done["epoch"], done["batch"]) == (1, 0)
    trained: list[list[int]] = []
    train_batch = Trainer.train_batch
    monkeypatch.setattr(Trainer, "train_batch", lambda *given: (trained.append(given[2]), train_batch(*given))[1])
    assert repr(train(run, tmp_path)) == repr(figures)
    assert len(trained) == batches
    assert (tmp_path / "model.safetensors").read_bytes() == (out / "model.safetensors").read_bytes()


def test_without_heldout_samples_the_contract_claims_no_acceptance(run: Run, tmp_path: Path) -> None:
    once = TrainSettings(**{**SETTINGS.model_dump(), "epochs": 1, "depth": 1})
    figures = train(replace(run, heldout=None, settings=once), tmp_path)
    contract = load_drafter(tmp_path, torch.float32, torch.device("cpu")).contract
    assert contract is not None
    assert contract.accept_length is None
    assert contract.position_acceptances == ()
    assert figures["evaluations"] == []


def test_the_drafter_is_shaped_like_a_layer_of_its_target(world: World) -> None:
    target = world.target.config
    config = drafter_config(target, SETTINGS, 3)
    for name in ("hidden_size", "heads", "kv_heads", "head_dim", "intermediate_size", "vocab_size", "norm_eps", "rope"):
        assert getattr(config, name) == getattr(target, name), name
    assert (config.taps, config.draft_vocab_size, config.max_context) == (3, 64, target.max_context)
    wide = TrainSettings(intermediate_size=99)
    assert drafter_config(target, wide, 3).intermediate_size == 99


def test_features_come_back_from_disk_as_they_were_recorded(run: Run, world: World) -> None:
    """What training reads is what the target computed: B_n of the store gives the target's own greedy choices."""
    source = run.source
    assert isinstance(source, FeatureStore)
    sample = source[0]
    weights = world.target.weights
    normed = torch.nn.functional.rms_norm(
        sample.states_TSH[:, -1], (48,), weights.final_norm, world.target.config.norm_eps
    )
    chosen = (normed @ weights.head.T).argmax(-1)
    kept = sample.mask_T.bool()
    assert torch.equal(chosen[kept].int(), sample.argmax_T[kept])
