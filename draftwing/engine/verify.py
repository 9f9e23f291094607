"""Which drafts the target confirms. Pure.

The target chooses a token after every row of the verified chain, greedily or by the uniform number that belongs
to that place of the text. A draft is accepted when it is the token that the target chose itself:

    rows       current  d1   d2   d3
    chosen     c0       c1   c2   c3        c_i: the target's token after row i
    accepted   d1 = c0, d2 = c1, d3 != c2   -> commit c0 c1 c2 (two drafts and the bonus token)

Committed tokens are thus always the target's own choices, made as plain decoding makes them. With a greedy drafter
this is speculative sampling (arXiv 2211.17192) with a one-point proposal: a draft d is accepted with probability
p(d), and otherwise the token is drawn from p without d.
"""

from __future__ import annotations


def matched(drafts: list[int], chosen: list[int]) -> int:
    """How many leading drafts equal the target's choices; `chosen` has one entry more than `drafts`."""
    if len(chosen) != len(drafts) + 1:
        raise ValueError(f"{len(chosen)} choices for {len(drafts)} drafts")
    for place, (draft, choice) in enumerate(zip(drafts, chosen, strict=False)):
        if draft != choice:
            return place
    return len(drafts)
