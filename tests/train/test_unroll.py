"""What training unrolls is what the engine does: the same states and the same drafts, from any row.

The engine feeds the features of tokens 0..t once and drafts s tokens. Training runs a whole text at once; put the
engine's own drafts behind token t + 1, and row t of the unroll must go through the same states.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from draftwing.drafter.checkpoint import LoadedDrafter
from draftwing.engine.proposers.base import Ask
from draftwing.engine.proposers.drafter import EagleProposer
from draftwing.formats.features import Sample
from draftwing.train import attention
from draftwing.train.align import chain_rows
from draftwing.train.batch import Batch, make_batch
from draftwing.train.loss import soft_cross_entropy_reference
from draftwing.train.unroll import Chain, Teacher, Unroller, chain_losses
from tests.drafter.small import TAPS, random_drafter, spread_vocabulary
from tests.train.tiny_world import CONTEXT, World, loaded, open_world, random_prompt

PROMPT, STEPS = 4, 5


@pytest.fixture(scope="module")
def world(tiny_folder: Path) -> World:
    torch.set_num_threads(1)
    return open_world(tiny_folder)


@pytest.fixture(scope="module")
def text(world: World) -> Sample:
    """A sampled prompt and the target's own answer, with features of all of it."""
    prompt = random_prompt(PROMPT, 3)
    return world.record("text", [(prompt, world.answer(prompt, 40))])


@pytest.fixture(scope="module")
def drafter(world: World) -> LoadedDrafter:
    config = world.config(96)
    return loaded(random_drafter(config), spread_vocabulary(config))


def engine_states(world: World, drafter: LoadedDrafter, text: Sample, t: int, pieces: int) -> tuple[Tensor, list[int]]:
    """States [steps, H] and drafts of the engine that refed rows 0..t in `pieces` and drafted after each of them."""
    proposer = EagleProposer(drafter, world.decoder.embed, CONTEXT)
    features = text.states_TSH[:, :-1].flatten(1)
    seen: list[Tensor] = []
    logits = drafter.model.logits
    drafter.model.logits = lambda state: (seen.append(state), logits(state))[1]
    try:
        ends = sorted({(t + 1) * piece // pieces for piece in range(1, pieces + 1)} - {0})
        for start, end in zip([0, *ends], ends, strict=False):
            seen.clear()
            proposer.extend(text.tokens_T[start + 1 : end + 1].tolist(), features[start:end])
            drafts = proposer.propose(Ask(64, STEPS, 1, lambda name, bucket, prior: prior)).tokens
    finally:
        del drafter.model.logits
    return torch.cat(seen), drafts


def taught(text: Sample, t: int, drafts: list[int]) -> Sample:
    """The text up to token t + 1, then the engine's drafts; features past t are another text's, for nobody to see."""
    T = t + 2 + len(drafts)
    tokens = torch.cat([text.tokens_T[: t + 2], torch.tensor(drafts)])
    states = torch.randn(T, len(TAPS) + 1, text.states_TSH.shape[-1], generator=torch.Generator().manual_seed(t)) * 9
    states[: t + 1] = text.states_TSH[: t + 1]
    return Sample("taught", tokens, torch.arange(T) >= PROMPT, torch.zeros(T, dtype=torch.int32), states)


def unrolled(world: World, drafter: LoadedDrafter, samples: list[Sample], t: int) -> tuple[Tensor, Batch, int]:
    """States [steps, H] of row t of the last sample, the batch, and the row's place among its queries."""
    batch = make_batch(samples, drafter.vocabulary, STEPS)
    assert batch is not None
    q = batch.spans[-1].queries.start + t - batch.spans[-1].first
    states = list(Unroller(drafter.model, world.target.weights.embedding).states(batch, STEPS))
    return torch.stack([state_QH[q] for state_QH in states]), batch, q


@pytest.mark.parametrize("block", [4, 512])
@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("t", [PROMPT - 1, PROMPT, 9, 17, 30])
def test_unrolled_states_and_drafts_are_the_engines(
    world: World, drafter: LoadedDrafter, text: Sample, monkeypatch: pytest.MonkeyPatch, t: int, pieces: int, block: int
) -> None:
    """From the response's first row on, whether the engine refed rows at once or over several cycles."""
    monkeypatch.setattr(attention, "BLOCK", block)
    states, drafts = engine_states(world, drafter, text, t, pieces)
    ours, batch, q = unrolled(world, drafter, [taught(text, t, drafts)], t)
    torch.testing.assert_close(ours, states, rtol=1e-4, atol=1e-4)
    chosen = drafter.model.logits(ours).argmax(-1)
    assert drafter.vocabulary.target_ids_D[chosen].tolist() == drafts
    # Every draft is the text's own token, and the batch knows it.
    assert batch.drafts_right_JQ[:, q].tolist() == chosen.tolist()


def test_other_samples_in_the_batch_change_nothing(world: World, drafter: LoadedDrafter, text: Sample) -> None:
    t = 12
    states, drafts = engine_states(world, drafter, text, t, 1)
    ours, _, _ = unrolled(world, drafter, [text, taught(text, 7, drafts), taught(text, t, drafts)], t)
    torch.testing.assert_close(ours, states, rtol=1e-4, atol=1e-4)


def test_the_states_do_depend_on_the_drafts_that_were_fed_back(
    world: World, drafter: LoadedDrafter, text: Sample
) -> None:
    """Step j reads the draft before it, so wrong teaching shows from the next step on."""
    t = 12
    states, drafts = engine_states(world, drafter, text, t, 1)
    other = [drafts[0], (drafts[1] + 1) % 256, *drafts[2:]]
    ours, _, _ = unrolled(world, drafter, [taught(text, t, other)], t)
    torch.testing.assert_close(ours[:2], states[:2], rtol=1e-4, atol=1e-4)
    assert not torch.allclose(ours[2], states[2], rtol=1e-2, atol=1e-2)


def test_a_text_as_long_as_the_drafters_context_can_be_unrolled(world: World, drafter: LoadedDrafter) -> None:
    """The last rows' later steps stand past the context; they count for nothing and must not stop the run."""
    limit = drafter.model.config.max_context
    generator = torch.Generator().manual_seed(0)
    states = torch.randn(limit, len(TAPS) + 1, world.target.config.hidden_size, generator=generator)
    argmax = torch.zeros(limit, dtype=torch.int32)
    sample = Sample("full", torch.zeros(limit, dtype=torch.long), torch.arange(limit) >= limit - 6, argmax, states)
    batch = make_batch([sample], drafter.vocabulary, STEPS)
    assert batch is not None
    outs = list(Unroller(drafter.model, world.target.weights.embedding).states(batch, STEPS))
    assert len(outs) == STEPS


def test_losses_are_sums_over_the_rows_that_count(world: World, drafter: LoadedDrafter, text: Sample) -> None:
    """Step by step: the target's own distribution at the place to be drafted, against the drafter's."""
    batch = make_batch([text], drafter.vocabulary, 3)
    assert batch is not None
    teacher = Teacher(world.target, drafter.vocabulary, torch.float32)
    model, unroller = drafter.model, Unroller(drafter.model, world.target.weights.embedding)
    sums = chain_losses(unroller, batch, teacher.probabilities(batch.teacher_states_PH), [0.5, 0.25, 2.0])
    world.decoder.cache.lengths[0] = 0
    logits_TV = world.decoder.forward(text.tokens_T[None], range(1)).logits_BMV[0]
    ids = drafter.vocabulary.target_ids_D
    p_TD = logits_TV[:, ids].softmax(-1)
    rows = chain_rows(text.mask_T)
    for step, state_QH in enumerate(unroller.states(batch, 3)):
        kept = [t for t in rows if t + 2 + step < len(text.tokens_T) and int(text.argmax_T[t + 1 + step]) in ids]
        at = torch.tensor([t - rows.start for t in kept])
        loss, chosen = soft_cross_entropy_reference(
            model.norm(state_QH[at]), model.lm_head.weight, p_TD, torch.tensor(kept) + 1 + step
        )
        said = text.tokens_T[torch.tensor(kept) + 2 + step]
        assert int(sums.counted_J[step]) == len(kept) > 0
        assert float(sums.loss_J[step]) == pytest.approx(float(loss), rel=1e-5)
        assert int(sums.right_J[step]) == int((ids[chosen] == said).sum())


def test_rows_that_are_left_out_change_nothing_for_the_others(
    world: World, drafter: LoadedDrafter, text: Sample
) -> None:
    """Two conversations, rows dropped after every step, one conversation to its last row."""
    batch = make_batch([text, taught(text, 7, [1, 2, 3, 4, 5])], drafter.vocabulary, STEPS + 1)
    assert batch is not None
    unroller = Unroller(drafter.model, world.target.weights.embedding)
    generator = torch.Generator().manual_seed(1)
    chain = Chain(unroller, batch)
    sizes = []
    for step, whole_QH in enumerate(unroller.states(batch, STEPS)):
        torch.testing.assert_close(chain.step(), whole_QH[chain.row_Q], rtol=1e-5, atol=1e-5)
        kept = torch.rand(len(chain.row_Q), generator=generator) < 0.7
        if step == 1:
            kept &= chain.row_Q < batch.spans[0].queries.stop
        chain.keep(kept)
        sizes.append(len(chain.row_Q))
    assert sizes == sorted(sizes, reverse=True) and 0 < sizes[-1] < sizes[0]
    chain.keep(torch.zeros(sizes[-1], dtype=torch.bool))
    assert chain.step().shape == (0, drafter.model.config.hidden_size)


def test_accepted_rows_alone_go_on_to_the_next_step(world: World, text: Sample) -> None:
    """The loss of each step is that of the rows whose drafts so far were the text's own tokens."""
    config = world.config(272)
    drafter = loaded(random_drafter(config), spread_vocabulary(config))
    batch = make_batch([text], drafter.vocabulary, 3)
    assert batch is not None
    model, unroller = drafter.model, Unroller(drafter.model, world.target.weights.embedding)
    teacher_PV = Teacher(world.target, drafter.vocabulary, torch.float32).probabilities(batch.teacher_states_PH)
    states = list(unroller.states(batch, 3))
    choices_JQ = torch.stack([model.logits(state_QH).argmax(-1) for state_QH in states])
    # Every other row's first draft, and every fourth row's second, are made right by decree.
    right_JQ = torch.full_like(choices_JQ, -1)
    right_JQ[0, ::2], right_JQ[1, ::4] = choices_JQ[0, ::2], choices_JQ[1, ::4]
    batch = replace(batch, drafts_right_JQ=right_JQ)
    sums = chain_losses(unroller, batch, teacher_PV, [1.0] * 3, "accepted")
    alive = torch.ones(len(batch.query_Q), dtype=torch.bool)
    for step, state_QH in enumerate(states):
        alive &= batch.counts_JQ[step]
        loss, _ = soft_cross_entropy_reference(
            model.norm(state_QH[alive]), model.lm_head.weight, teacher_PV, batch.learns_JQ[step][alive]
        )
        assert int(sums.counted_J[step]) == int(alive.sum()) > 0
        assert float(sums.loss_J[step]) == pytest.approx(float(loss), rel=1e-5)
        alive &= right_JQ[step] == choices_JQ[step]
    everything = chain_losses(unroller, batch, teacher_PV, [1.0] * 3)
    assert everything.counted_J.tolist() == batch.counts_JQ.sum(1).tolist()
    assert sums.counted_J[2] < sums.counted_J[1] < sums.counted_J[0] == everything.counted_J[0]


def test_weights_cast_once_get_the_gradients_of_weights_cast_for_each_product(
    world: World, drafter: LoadedDrafter, text: Sample
) -> None:
    """In bfloat16, where a cast is a rounding: the same rounded weights, and sums that differ by rounding alone."""
    batch = make_batch([text], drafter.vocabulary, 3)
    assert batch is not None
    batch = batch.to(torch.device("cpu"), torch.bfloat16)
    teacher = Teacher(world.target, drafter.vocabulary, torch.bfloat16)
    model = random_drafter(drafter.model.config)
    results = []
    for hold in (True, False):
        with model.casting_once(torch.bfloat16) if hold else nullcontext():
            states = torch.stack(list(Unroller(model, teacher.embedding_VH).states(batch, 3)))
            total = model.logits(states).float().logsumexp(-1).sum()
        results.append((total, torch.autograd.grad(total, list(model.parameters()))))
    assert torch.equal(results[0][0], results[1][0])
    for once, each in zip(results[0][1], results[1][1], strict=True):
        assert once.dtype == each.dtype == torch.float32
        assert float((once - each).norm()) <= 0.02 * float(each.norm())
