"""The cache: however the tokens are fed (one by one, in chunks, in a batch, as a tree), the states are the same.

Shapes: B sequences, M new tokens, T tokens in all, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from draftwing.core.errors import UserError
from draftwing.ops.attention import SHORT_QUERY
from draftwing.target.cache import Cache
from draftwing.target.decoder import Decoder
from draftwing.target.load import Target, load_target
from tests.tiny import VOCAB

TAPS = (0, 3, 8)
TOLERANCE = 2e-5

# A tree of six nodes below the cached text, its depths, and its paths from root to leaf:
#
#     0 ── 1 ── 3
#     │    └─── 4 ── 5
#     └─── 2
PARENTS = (-1, 0, 0, 1, 1, 4)
DEPTHS = (0, 1, 1, 2, 2, 3)
PATHS = ([0, 1, 3], [0, 1, 4, 5], [0, 2])


@pytest.fixture(scope="module")
def target(tiny_folder: Path) -> Target:
    return load_target(str(tiny_folder), "float32", "cpu")


def _text(count: int, seed: int = 1) -> list[int]:
    return torch.randint(0, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def _run(decoder: Decoder, tokens: list[int], slot: int = 0) -> tuple[Tensor, Tensor]:
    """Logits [M, V] and taps [M, A, H] of new tokens of one slot."""
    out = decoder.forward(torch.tensor([tokens]), range(slot, slot + 1), taps=TAPS)
    assert out.logits_BMV is not None
    assert out.taps_BMAH is not None
    return out.logits_BMV[0], out.taps_BMAH[0]


def _chunked(decoder: Decoder, tokens: list[int], sizes: list[int]) -> tuple[Tensor, Tensor]:
    parts, start = [], 0
    for size in sizes:
        parts.append(_run(decoder, tokens[start : start + size]))
        start += size
    assert start == len(tokens)
    return torch.cat([logits for logits, _ in parts]), torch.cat([taps for _, taps in parts])


def _visible() -> Tensor:
    """visible[i, j]: node j is node i or an ancestor of it."""
    visible = torch.eye(len(PARENTS), dtype=torch.bool)
    for node, parent in enumerate(PARENTS):
        if parent >= 0:
            visible[node] |= visible[parent]
    return visible


def _live(cache: Cache, slot: int = 0) -> Tensor:
    """The entries of a slot that count: keys, then values."""
    length = cache.lengths[slot]
    return torch.stack([cache.keys_LSKCD[:, slot, :, :length], cache.values_LSKCD[:, slot, :, :length]])


def _close(ours: Tensor, theirs: Tensor) -> bool:
    return ours.shape == theirs.shape and float((ours - theirs).norm() / theirs.norm()) < TOLERANCE


# A text that holds short and long queries.
LONG = 2 * SHORT_QUERY + 20


@pytest.mark.parametrize(
    "sizes",
    [
        [1] * LONG,
        [1, LONG - 1],
        [SHORT_QUERY, LONG - SHORT_QUERY],
        [SHORT_QUERY + 1, SHORT_QUERY, LONG - 2 * SHORT_QUERY - 1],
        [5, SHORT_QUERY + 3, 1, LONG - SHORT_QUERY - 9],
    ],
    ids=["one-by-one", "one-then-all", "boundary", "above-and-at-the-boundary", "uneven"],
)
def test_chunks_equal_one_prefill(target: Target, sizes: list[int]) -> None:
    text = _text(LONG)
    whole = target.decoder(context=LONG)
    logits, taps = _run(whole, text)
    parts = target.decoder(context=LONG)
    part_logits, part_taps = _chunked(parts, text, sizes)
    assert _close(part_logits, logits)
    assert _close(part_taps, taps)
    assert parts.cache.lengths == whole.cache.lengths == [LONG]
    assert _close(_live(parts.cache), _live(whole.cache))


@pytest.mark.parametrize("length", [0, 1, 7, 16, 29, 30])
def test_going_on_after_a_rollback_equals_a_fresh_run(target: Target, length: int) -> None:
    old, new = _text(30), _text(20, seed=2)
    decoder = target.decoder(context=64)
    _run(decoder, old)
    decoder.cache.rollback(0, length)
    again, taps = _run(decoder, new)
    fresh = target.decoder(context=64)
    logits, fresh_taps = _run(fresh, old[:length] + new)
    assert _close(again, logits[length:])
    assert _close(taps, fresh_taps[length:])
    assert _close(_live(decoder.cache), _live(fresh.cache))


@pytest.mark.parametrize("length", [-1, 11])
def test_rollback_goes_back_only(target: Target, length: int) -> None:
    decoder = target.decoder(context=64)
    _run(decoder, _text(10))
    with pytest.raises(ValueError, match=f"to {length}, it holds 10"):
        decoder.cache.rollback(0, length)
    assert decoder.cache.lengths == [10]


@pytest.mark.parametrize("new", [1, 5, SHORT_QUERY + 4])
def test_a_ragged_batch_equals_single_sequences(target: Target, new: int) -> None:
    """Slots of 3, 0 and 25 tokens are fed `new` more at once; a slot that is not named keeps what it has."""
    lengths = [9, 3, 0, 25]
    batch = target.decoder(slots=4, context=128)
    texts = [_text(length + new, seed) for seed, length in enumerate(lengths)]
    for slot, length in enumerate(lengths):
        if length:
            _run(batch, texts[slot][:length], slot)
    out = batch.forward(torch.tensor([text[-new:] for text in texts[1:]]), range(1, 4), taps=TAPS)
    assert out.logits_BMV is not None
    assert out.taps_BMAH is not None
    assert batch.cache.lengths == [9, 3 + new, new, 25 + new]
    for row, slot in enumerate(range(1, 4)):
        alone = target.decoder(context=128)
        logits, taps = _run(alone, texts[slot])
        assert _close(out.logits_BMV[row], logits[-new:])
        assert _close(out.taps_BMAH[row], taps[-new:])
        assert _close(_live(batch.cache, slot), _live(alone.cache))
    untouched = target.decoder(context=128)
    _run(untouched, texts[0][:9])
    assert _close(_live(batch.cache, 0), _live(untouched.cache))


def test_stale_entries_of_a_longer_past_never_show(target: Target) -> None:
    """A slot that held garbage and was rolled back gives the same as a new one, even beside a longer neighbour."""
    decoder = target.decoder(slots=2, context=64)
    for slot in range(2):
        _run(decoder, _text(50, seed=8), slot)
    decoder.cache.keys_LSKCD[:, 0, :, 4:] = 1e4
    decoder.cache.values_LSKCD[:, 0, :, 4:] = 1e4
    decoder.cache.rollback(0, 0)
    short = _text(4, seed=9)
    _run(decoder, short[:3], 0)
    out = decoder.forward(torch.tensor([short[3:], [7]]), range(2))
    assert out.logits_BMV is not None
    assert _close(out.logits_BMV[0], _run(target.decoder(context=64), short)[0][3:])


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_a_path_through_a_tree_equals_its_chain(target: Target, path: list[int]) -> None:
    """Logits, taps and, after `keep`, the cache are those of running only this path."""
    prompt, nodes = _text(12), _text(6, seed=3)
    tree = target.decoder(context=64)
    _run(tree, prompt)
    out = tree.forward(
        torch.tensor([nodes]), range(1), taps=TAPS, positions_M=torch.tensor(DEPTHS), visible_MM=_visible()
    )
    chain = target.decoder(context=64)
    logits, taps = _run(chain, prompt + [nodes[node] for node in path])
    assert out.logits_BMV is not None
    assert out.taps_BMAH is not None
    assert _close(out.logits_BMV[0, path], logits[12:])
    assert _close(out.taps_BMAH[0, path], taps[12:])

    assert tree.cache.lengths == [18]
    tree.cache.keep(0, 12, path)
    assert tree.cache.lengths == [12 + len(path)]
    assert _close(_live(tree.cache), _live(chain.cache))
    following = _text(3, seed=4)
    assert _close(_run(tree, following)[0], _run(chain, following)[0])


def test_a_tree_in_a_ragged_batch_equals_the_tree_alone(target: Target) -> None:
    nodes, tree = _text(6, seed=3), {"positions_M": torch.tensor(DEPTHS), "visible_MM": _visible()}
    batch = target.decoder(slots=2, context=64)
    for slot, length in enumerate((12, 30)):
        _run(batch, _text(length), slot)
    out = batch.forward(torch.tensor([nodes, nodes]), range(2), **tree).logits_BMV
    assert out is not None
    for slot, length in enumerate((12, 30)):
        alone = target.decoder(context=64)
        _run(alone, _text(length))
        single = alone.forward(torch.tensor([nodes]), range(1), **tree).logits_BMV
        assert single is not None
        assert _close(out[slot], single[0])


@pytest.mark.parametrize("rows", [[], [0], [0, 1, 2], [0, 1, 2, 3, 4, 5]], ids=str)
def test_keeping_a_prefix_moves_nothing(target: Target, rows: list[int]) -> None:
    decoder = target.decoder(context=64)
    _run(decoder, _text(18))
    before = _live(decoder.cache).clone()
    decoder.cache.keep(0, 12, rows)
    assert decoder.cache.lengths == [12 + len(rows)]
    assert torch.equal(_live(decoder.cache), before[..., : 12 + len(rows), :])


def test_keep_touches_its_slot_only(target: Target) -> None:
    decoder = target.decoder(slots=2, context=32)
    for slot in range(2):
        _run(decoder, _text(10), slot)
    other = _live(decoder.cache, 1).clone()
    decoder.cache.keep(0, 4, [1, 3, 4])
    assert decoder.cache.lengths == [7, 10]
    assert torch.equal(_live(decoder.cache, 1), other)
    assert torch.equal(_live(decoder.cache, 0)[..., 4:7, :], other[..., [5, 7, 8], :])


@pytest.mark.parametrize(("held", "new", "fits"), [(10, 22, True), (10, 23, False), (32, 1, False), (0, 33, False)])
def test_what_does_not_fit_is_refused_and_nothing_is_lost(target: Target, held: int, new: int, fits: bool) -> None:
    decoder = target.decoder(slots=2, context=32)
    if held:
        _run(decoder, _text(held), 1)
    before = list(decoder.cache.lengths)
    tokens = torch.tensor([_text(new), _text(new)])
    if fits:
        decoder.forward(tokens, range(2))
        assert decoder.cache.lengths == [new, held + new]
        return
    with pytest.raises(UserError, match=f"{held + new} tokens do not fit a context of 32"):
        decoder.forward(tokens, range(2))
    assert decoder.cache.lengths == before


@pytest.mark.parametrize("context", [0, -1, 513])
def test_a_context_outside_the_model_is_refused(target: Target, context: int) -> None:
    with pytest.raises(UserError, match="Choose between 1 and 512"):
        target.decoder(context=context)


def test_the_default_context_is_the_models_limit(target: Target) -> None:
    assert target.decoder().cache.capacity == 512


def test_as_many_slots_as_sequences(target: Target) -> None:
    with pytest.raises(ValueError, match="2 sequences for 1 slots"):
        target.decoder(slots=2, context=8).forward(torch.tensor([[1], [2]]), range(1))
