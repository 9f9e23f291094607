"""Regenerated answers: the same for any number of slots, and the same states as a prefill of the finished text."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM

from draftwing.capture import regenerate as regenerate_module
from draftwing.capture.record import record
from draftwing.capture.regenerate import Regenerator, TokenPrompt, in_groups
from draftwing.core.errors import UserError
from draftwing.formats.features import Sample
from draftwing.ops.sampling import Sampling, choose, uniforms
from draftwing.target.load import Target
from tests.capture.small import TAPS, answers, close, token_prompts
from tests.tiny import EOS, VOCAB

SAMPLED = Sampling(temperature=1.0, top_p=0.95, seed=3)


def _new_tokens(sample: Sample) -> list[int]:
    return [int(token) for token in sample.tokens_T[sample.mask_T.bool()]]


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_a_batch_gives_what_one_slot_gives(target: Target, sampling: Sampling) -> None:
    """T5: 20 prompts, 1, 4 and 8 slots: equal tokens and choices, states equal but for rounding, 20 out for 20 in."""
    prompts = token_prompts(20)
    alone = answers(target, prompts, slots=1, sampling=sampling)
    for slots in (4, 8):
        batch = answers(target, prompts, slots=slots, sampling=sampling)
        for id, sample in alone.items():
            assert torch.equal(batch[id].tokens_T, sample.tokens_T)
            assert torch.equal(batch[id].argmax_T, sample.argmax_T)
            assert torch.equal(batch[id].mask_T, sample.mask_T)
            assert close(batch[id].states_TSH, sample.states_TSH)


@pytest.mark.parametrize("sampling", [Sampling(), SAMPLED], ids=["greedy", "sampled"])
def test_states_equal_those_of_a_prefill_of_the_finished_text(target: Target, sampling: Sampling) -> None:
    prompts = token_prompts(12)
    for id, sample in answers(target, prompts, slots=5, sampling=sampling).items():
        again = record(target.decoder(), id, sample.tokens_T.tolist(), sample.mask_T.tolist(), TAPS)
        assert close(sample.states_TSH, again.states_TSH)
        assert torch.equal(sample.argmax_T.long(), again.argmax_T)
        assert sample.states_TSH.shape == (len(sample.tokens_T), len(TAPS) + 1, 48)


@torch.inference_mode()
def test_greedy_answers_are_those_of_transformers(target: Target) -> None:
    """By its forward alone, one token at a time without a cache."""
    model = AutoModelForCausalLM.from_pretrained(target.folder, dtype=torch.float32).eval()
    prompts = token_prompts(6)
    ours = answers(target, prompts, slots=3, max_new_tokens=8)
    for prompt in prompts:
        tokens = list(prompt.tokens)
        while len(tokens) < len(prompt.tokens) + 8 and tokens[-1] != EOS:
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
        assert ours[prompt.id].tokens_T.tolist() == tokens


def test_a_sampled_answer_is_the_draws_of_its_prompt_in_order(target: Target) -> None:
    """Token i of an answer is chosen by uniform i of seed plus prompt id, from the logits before it."""
    prompt = token_prompts(4)[3]
    sample = answers(target, token_prompts(4), slots=2, sampling=SAMPLED)[prompt.id]
    draws = uniforms(SAMPLED.seed + int(prompt.id, 16) % 2**62, 16)
    tokens = list(prompt.tokens)
    for u in draws:
        out = target.decoder().forward(torch.tensor([tokens]), range(1), logits="last").logits_BMV
        assert out is not None
        tokens.append(int(choose(out[:, -1], SAMPLED, u[None])[0]))
        if tokens[-1] == EOS:
            break
    assert sample.tokens_T.tolist() == tokens


def test_samples_depend_on_seed_and_prompt_id_only(target: Target) -> None:
    """Whatever else is asked, and in which order: the same id gives the same answer; another seed another one."""
    prompts = token_prompts(10)
    all_ten = answers(target, prompts, slots=4, sampling=SAMPLED)
    few = answers(target, prompts[7:2:-2], slots=2, sampling=SAMPLED)
    assert all(torch.equal(sample.tokens_T, all_ten[id].tokens_T) for id, sample in few.items())
    other_seed = answers(target, prompts, slots=4, sampling=Sampling(temperature=1.0, top_p=0.95, seed=4))
    assert all(not torch.equal(other_seed[id].tokens_T, all_ten[id].tokens_T) for id in all_ten)
    renamed = [TokenPrompt(prompt.id[:-4] + "00ff", prompt.tokens) for prompt in prompts[:3]]
    for prompt, other in zip(prompts, renamed, strict=False):
        assert _new_tokens(answers(target, [other], sampling=SAMPLED)[other.id]) != _new_tokens(all_ten[prompt.id])


def _ending_with(target: Target, *ids: int) -> Target:
    return replace(target, config=replace(target.config, eos_ids=ids))


@pytest.mark.parametrize("slots", [1, 6])
def test_an_end_token_ends_an_answer_and_is_its_last(target: Target, slots: int) -> None:
    """Every ninth token id ends an answer: most of 12 answers end early, and none goes on after it."""
    ends = tuple(range(0, VOCAB, 9))
    samples = answers(_ending_with(target, *ends), token_prompts(12), slots=slots, sampling=SAMPLED)
    going_on = answers(_ending_with(target), token_prompts(12), slots=6, sampling=SAMPLED)
    ended = 0
    for id, sample in samples.items():
        new = _new_tokens(sample)
        assert not set(new[:-1]) & set(ends)
        assert len(new) == 16 or new[-1] in ends
        assert new == _new_tokens(going_on[id])[: len(new)]
        ended += len(new) < 16
    assert ended > 3


def test_an_end_token_at_once_is_an_answer_of_one_token(target: Target) -> None:
    prompts = token_prompts(3)
    first = _new_tokens(answers(target, prompts[:1])[prompts[0].id])[0]
    samples = answers(_ending_with(target, first), prompts, slots=2)
    assert _new_tokens(samples[prompts[0].id]) == [first]


@pytest.mark.parametrize("limit", [1, 2, 9])
def test_no_answer_is_longer_than_asked(target: Target, limit: int) -> None:
    lengths = [len(_new_tokens(s)) for s in answers(target, token_prompts(9), slots=3, max_new_tokens=limit).values()]
    assert max(lengths) == limit
    assert all(1 <= length <= limit for length in lengths)


@pytest.mark.parametrize("slots", [1, 3])
def test_an_answer_stops_where_the_cache_is_full(target: Target, slots: int) -> None:
    prompts = token_prompts(9, shortest=4)
    longest = max(len(prompt.tokens) for prompt in prompts)
    samples = answers(target, prompts, slots=slots, max_new_tokens=100, context=longest + 1)
    for prompt in prompts:
        sample = samples[prompt.id]
        assert len(sample.tokens_T) == longest + 1 or _new_tokens(sample)[-1] == EOS
    assert min(len(_new_tokens(sample)) for sample in samples.values()) == 1


def test_a_prompt_that_leaves_no_room_is_a_users_error(target: Target) -> None:
    for context in (10, 9):
        with pytest.raises(UserError, match=f"do not fit a context of {context}"):
            answers(target, [TokenPrompt("ab", list(range(10)))], context=context)


def test_a_long_prompt_is_prefilled_in_chunks(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = token_prompts(6, shortest=20)
    whole = answers(target, prompts, slots=2)
    monkeypatch.setattr(regenerate_module, "PREFILL_ROWS", 7)
    for id, sample in answers(target, prompts, slots=2).items():
        assert torch.equal(sample.tokens_T, whole[id].tokens_T)
        assert close(sample.states_TSH, whole[id].states_TSH)


def test_a_worker_can_be_used_again(target: Target) -> None:
    """B9, B11: places are freed; a second run on the same cache gives the same samples."""
    worker = Regenerator(target.decoder(3, 64), TAPS, 12, Sampling())
    first = {sample.id: sample for sample in worker.run(token_prompts(8))}
    second = {sample.id: sample for sample in worker.run(token_prompts(8))}
    assert first.keys() == second.keys()
    assert all(torch.equal(first[id].tokens_T, second[id].tokens_T) for id in first)
    assert all(close(second[id].states_TSH, first[id].states_TSH) for id in first)


def test_a_sample_keeps_its_states_when_its_place_is_used_again(target: Target) -> None:
    """A sample held by the caller is no view of a buffer that the next answer overwrites."""
    prompts = token_prompts(4)
    stream = Regenerator(target.decoder(1, 64), TAPS, 8, Sampling()).run(prompts)
    first = next(stream)
    copy = first.states_TSH.clone()
    list(stream)
    assert torch.equal(first.states_TSH, copy)


def test_groups_keep_file_order_in_the_large_and_sort_by_length_in_the_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regenerate_module, "GROUP", 3)
    prompts = [TokenPrompt(str(length), [0] * length) for length in (9, 2, 5, 1, 8, 4, 3)]
    assert [prompt.id for prompt in in_groups(prompts)] == ["2", "5", "9", "1", "4", "8", "3"]
