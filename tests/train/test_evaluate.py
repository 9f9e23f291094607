"""Held-out figures are what decoding would count: walked cycles against the engine on the same prompts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from draftwing.drafter.checkpoint import LoadedDrafter
from draftwing.drafter.initial import new_drafter, tap_scale
from draftwing.drafter.vocabulary import VocabularyMap
from draftwing.engine.engine import Engine
from draftwing.engine.request import Counters, Request
from draftwing.engine.shape import chain
from draftwing.formats.features import Sample
from draftwing.train.evaluate import evaluate
from draftwing.train.loop import Trainer, TrainSettings
from draftwing.train.unroll import Teacher
from tests.drafter.small import random_drafter
from tests.law.models import drafting
from tests.train.scenes import CONFIG, frozen_target, noise, quiet, store
from tests.train.tiny_world import World, loaded, open_world, random_prompt

LENGTH = 36
Turn = tuple[list[int], list[int]]


@pytest.fixture(scope="module")
def world(tiny_folder: Path) -> World:
    torch.set_num_threads(1)
    return open_world(tiny_folder)


@pytest.fixture(scope="module")
def turns(world: World) -> list[Turn]:
    """Prompts with the target's greedy answers; one of them ends at an end-of-text token."""
    prompts = [random_prompt(length, seed) for seed, length in enumerate((3, 8, 5, 12))]
    answered = [(prompt, world.answer(prompt, LENGTH)) for prompt in prompts]
    assert {len(answer) < LENGTH for _, answer in answered} == {True, False}
    return answered


@pytest.fixture(scope="module")
def samples(world: World, turns: list[Turn]) -> list[Sample]:
    return [world.record(str(number), [turn]) for number, turn in enumerate(turns)]


@pytest.fixture(scope="module")
def drafter(world: World, samples: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> LoadedDrafter:
    """Trained for five dozen updates on these very answers, so that it is right now and then."""
    torch.set_num_threads(1)
    vocabulary, weights = world.vocabulary(samples, 100), world.target.weights
    scale = tap_scale(torch.cat([sample.states_TSH[:, :-1] for sample in samples]))
    model = new_drafter(world.config(100), weights.head[vocabulary.target_ids_D], weights.final_norm, scale, seed=0)
    teacher = Teacher(world.target, vocabulary, torch.float32)
    settings = TrainSettings(epochs=60, depth=5, batch_tokens=500, muon_lr=0.1, adam_lr=0.02, clip=100, step_weight=1)
    trainer = Trainer(model, teacher, vocabulary, settings, dtype=torch.float32)
    folder = tmp_path_factory.mktemp("features")
    trainer.run(store(folder, samples, world.contract()), None, None, quiet())
    return loaded(model, vocabulary)


def decode(world: World, drafter: LoadedDrafter, prompts: list[list[int]], lengths: list[int], steps: int) -> Counters:
    """The engine's counters over these prompts."""
    engine, counters = (
        Engine(world.decoder, world.tokenizer, [drafting(world.decoder, drafter)], chain(steps)),
        Counters(),
    )
    for prompt, length in zip(prompts, lengths, strict=True):
        counters.add(engine.generate(Request(tuple(prompt), length)).counters)
    return counters


def require_same(world: World, drafter: LoadedDrafter, samples: list[Sample], counters: Counters, steps: int) -> None:
    teacher = Teacher(world.target, drafter.vocabulary, torch.float32)
    figures = evaluate(drafter.model, teacher, drafter.vocabulary, samples, steps, torch.float32)
    counters.add(Counters(reached=[0] * steps, accepted=[0] * steps))
    for name in ("cycles", "committed", "reached", "accepted", "accept_length"):
        assert getattr(figures.cycles, name) == getattr(counters, name), name
    assert counters.plain_steps == 0


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_walked_cycles_are_the_engines_counters(
    world: World, drafter: LoadedDrafter, samples: list[Sample], turns: list[Turn], steps: int
) -> None:
    counters = decode(world, drafter, [prompt for prompt, _ in turns], [LENGTH] * len(turns), steps)
    require_same(world, drafter, samples, counters, steps)
    # Otherwise the test would compare nothing but ones.
    assert counters.accepted[0] > 5
    assert counters.accepted[min(steps, 3) - 1] > 0
    assert counters.accept_length > 1.3


@pytest.mark.parametrize("steps", [2, 5])
def test_texts_that_training_never_saw_are_walked_as_the_engine_decodes_them(
    world: World, drafter: LoadedDrafter, steps: int
) -> None:
    prompts = [random_prompt(6, 11), random_prompt(2, 12)]
    fresh = [world.record("new", [(prompt, world.answer(prompt, 20))]) for prompt in prompts]
    require_same(world, drafter, fresh, decode(world, drafter, prompts, [20, 20], steps), steps)


def test_a_conversation_of_two_turns_is_two_decodings(world: World, drafter: LoadedDrafter, turns: list[Turn]) -> None:
    """The second answer is drafted with the features of the whole conversation before it."""
    (first, said), more = turns[1], random_prompt(4, 5)
    second = [*first, *said, *more]
    answer = world.answer(second, 25)
    conversation = world.record("turns", [(first, said), (more, answer)])
    counters = decode(world, drafter, [first, second], [LENGTH, 25], 3)
    assert counters.committed == len(said) + len(answer) - 2
    require_same(world, drafter, [conversation], counters, 3)


def test_the_means_over_positions_are_shares_of_all_places_of_the_responses() -> None:
    """A drafter that always says draft id 0 is right wherever the text says that token; each turn ends its chains."""
    vocabulary = VocabularyMap(torch.arange(30), 40)
    model = random_drafter(CONFIG).requires_grad_(False)
    model.lm_head.weight.zero_()
    samples = [
        noise([0, 0, 1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 0], seed=1, vocab=2),
        noise([0, 1, 1, 1], seed=2, vocab=2),
        noise([0, 1], seed=3, vocab=2),
    ]
    responses = [(0, 2, 7), (0, 9, 12), (1, 1, 4)]
    teacher = Teacher(frozen_target(), vocabulary, torch.float32)
    figures = evaluate(model, teacher, vocabulary, samples, 3, torch.float32)
    for step in range(3):
        # The response's first token is not drafted, and draft j of a chain is at least j tokens further in.
        said = [samples[n].tokens_T[start + 1 + step : end].tolist() for n, start, end in responses]
        places = [token for part in said for token in part]
        assert figures.mean_over_positions[step] == pytest.approx(places.count(0) / len(places))
    assert figures.cycles.committed == 4 + 2 + 2


def test_no_sample_to_walk_gives_no_figure() -> None:
    vocabulary = VocabularyMap(torch.arange(30), 40)
    teacher = Teacher(frozen_target(), vocabulary, torch.float32)
    figures = evaluate(random_drafter(CONFIG), teacher, vocabulary, [noise([0, 1])], 2, torch.float32)
    assert (figures.cycles.cycles, figures.cycles.committed) == (0, 0)
