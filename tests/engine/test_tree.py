"""The drawing of `engine/tree`, and what holds for every tree."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwing.engine.tree import ROOT, Candidates, Tree, Trie

CUR, THE, SEA, IS, WAS, A, DRY = range(7)


def _drawing() -> list[Candidates]:
    lookup, drafter = Candidates("lookup"), Candidates("drafter")
    parent = ROOT
    for depth, token in enumerate((THE, SEA, IS)):
        parent = lookup.add(token, parent, 0.5, ("match", depth))
    the = drafter.add(THE, ROOT, 0.6, "0.6")
    drafter.add(A, ROOT, 0.2, "0.2")
    drafter.add(WAS, drafter.add(SEA, the, 0.9, "0.9"), 0.25, "0.2")
    return [lookup, drafter]


def _trie(current: int, sources: list[Candidates]) -> Trie:
    trie = Trie(current)
    for source in sources:
        trie.add(source)
    return trie


def merge(current: int, sources: list[Candidates]) -> Tree:
    """The tree of all candidates."""
    trie = _trie(current, sources)
    return trie.cut(len(trie))


def test_the_drawing() -> None:
    tree = merge(CUR, _drawing())
    assert tree.tokens == [CUR, THE, A, SEA, IS, WAS]
    assert tree.positions().tolist() == [0, 1, 1, 2, 3, 3]
    assert tree.visible().int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [1, 1, 0, 1, 0, 0],
        [1, 1, 0, 1, 1, 0],
        [1, 1, 0, 1, 0, 1],
    ]
    assert tree.accepted([THE, SEA, DRY, WAS, DRY, DRY]) == [0, 1, 3, 5]
    assert tree.accepted([DRY, SEA, DRY, WAS, DRY, DRY]) == [0], "what stands below a wrong node is never followed"
    assert [round(node.reach, 4) for node in tree.nodes] == [1, 0.6, 0.2, 0.54, 0.27, 0.135]
    assert tree.expected == pytest.approx(1 + 0.6 + 0.2 + 0.54 + 0.27 + 0.135)
    assert dict(tree.nodes[3].proposers) == {"lookup": ("match", 1), "drafter": "0.9"}
    assert not tree.is_chain


def test_siblings_of_different_proposers_share_one_chance() -> None:
    one, other = Candidates("one"), Candidates("other")
    one.add(1, ROOT, 0.9)
    other.add(2, ROOT, 0.6)
    assert [node.reach for node in merge(0, [one, other]).nodes] == pytest.approx([1, 0.6, 0.4])


def test_plain_decoding_and_chains_are_trees() -> None:
    assert merge(7, []).tokens == [7]
    assert merge(7, []).is_chain and merge(7, []).accepted([3]) == [0]
    chain = merge(CUR, _drawing()[:1])
    assert chain.is_chain
    assert torch.equal(chain.visible(), torch.ones(4, 4).tril().bool())
    assert _trie(CUR, _drawing()).cut(1).tokens == [CUR]


def test_a_chain_follows_the_likeliest_child() -> None:
    assert _trie(CUR, _drawing()).chain(9).tokens == [CUR, THE, SEA, IS]
    assert _trie(CUR, _drawing()).chain(2).tokens == [CUR, THE, SEA]
    assert _trie(CUR, _drawing()).chain(0).tokens == [CUR]
    assert _trie(CUR, []).chain(3).tokens == [CUR]
    other = Candidates("other")
    other.add(A, ROOT, 0.7)
    assert _trie(CUR, [*_drawing(), other]).chain(3).tokens == [CUR, A]


def test_what_is_no_tree_is_refused() -> None:
    source = Candidates("x")
    with pytest.raises(ValueError, match="node 0 can not have parent 0"):
        source.add(1, 0, 0.5)
    with pytest.raises(ValueError, match="no probability"):
        source.add(1, ROOT, float("nan"))
    with pytest.raises(ValueError, match="has its root"):
        Trie(0).cut(0)
    with pytest.raises(ValueError, match="2 choices for 1 nodes"):
        merge(0, []).accepted([1, 2])


@st.composite
def _sources(draw: st.DrawFn) -> list[Candidates]:
    """Few tokens, so that proposers agree and disagree often; equal chances, so that ties are common."""
    sources = []
    for number in range(draw(st.integers(0, 3))):
        source = Candidates(f"p{number}")
        for _ in range(draw(st.integers(0, 12))):
            parent = draw(st.integers(ROOT, len(source.tokens) - 1))
            source.add(draw(st.integers(0, 3)), parent, draw(st.sampled_from([0.0, 0.25, 0.5, 1.0])))
        sources.append(source)
    return sources


def _paths(tree: Tree) -> set[tuple[int, ...]]:
    """Every node as the tokens that lead to it."""
    paths: list[tuple[int, ...]] = []
    for node in tree.nodes:
        paths.append((*paths[node.parent], node.token) if node.parent != ROOT else ())
    assert len(set(paths)) == len(paths), "a prefix is one node"
    return set(paths)


@given(_sources(), st.integers(1, 40), st.lists(st.integers(0, 3), min_size=41, max_size=41))
def test_every_tree(sources: list[Candidates], size: int, choices: list[int]) -> None:
    whole = merge(9, sources)
    proposed: set[tuple[int, ...]] = {()}
    for source in sources:
        mine: list[tuple[int, ...]] = []
        for token, parent in zip(source.tokens, source.parents, strict=True):
            mine.append((*(mine[parent] if parent != ROOT else ()), token))
        proposed |= set(mine)
    assert _paths(whole) == proposed
    kept = _trie(9, sources).cut(size)
    assert len(kept) == min(size, len(whole))
    assert _paths(kept) <= proposed
    left_out = sorted((node.reach for node in whole.nodes), reverse=True)[len(kept) :]
    assert not left_out or max(left_out) <= min(node.reach for node in kept.nodes)
    for tree in (whole, kept):
        assert tree.nodes[0].token == 9 and tree.nodes[0].reach == 1
        for row, node in enumerate(tree.nodes[1:], 1):
            parent = tree.nodes[node.parent]
            assert node.parent < row and node.depth == parent.depth + 1 and node.reach <= parent.reach
        by_parent: dict[int, float] = {}
        for node in tree.nodes[1:]:
            by_parent[node.parent] = by_parent.get(node.parent, 0) + node.reach
        assert all(total <= tree.nodes[row].reach + 1e-9 for row, total in by_parent.items())
        seen = tree.visible()
        assert seen.sum(1).tolist() == [node.depth + 1 for node in tree.nodes]
        # The path is the longest proposed one whose tokens are the choices along it.
        chosen = choices[: len(tree)]
        path = tree.accepted(chosen)
        assert path == sorted(path)
        assert [tree.nodes[row].token for row in path[1:]] == [chosen[row] for row in path[:-1]]
        prefix = tuple(chosen[row] for row in path)
        assert prefix[:-1] in _paths(tree) and prefix not in _paths(tree)
