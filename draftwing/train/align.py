"""Which token, feature and target belong together. Pure.

A conversation of T tokens. f_t are the features at token t (they know tokens 0..t); p_t is the target's
distribution of token t + 1. Row t of the drafter starts a chain there; at step j it is

    row t, step j:   state    j = 0: fc(f_t); later its own output of step j - 1
                     token    x_{t+1+j}         the draft accepted last (the text's own token in training)
                     position t + j
                     learns   p_{t+1+j}, a distribution of x_{t+2+j}

With a prompt of two tokens (x0 x1), a response of four (x2 x3 x4 x5) and two steps:

    t                 0    1    2    3    4    5
    token             x0   x1   x2   x3   x4   x5
    mask              0    0    1    1    1    1
    step 0: token     x1   x2   x3   x4   x5   .
            learns    p1   p2   p3   p4   .    .
            counts    -    yes  yes  yes  -    -
    step 1: token     x2   x3   x4   x5   .    .
            learns    p2   p3   p4   .    .    .
            counts    -    yes  yes  -    -    -

Row 0 does not count: decoding never drafts x2, the token that prefill yields; it starts at row 1, whose
token x2 is the first of the response. So step j of row t counts when x_{t+1} .. x_{t+2+j} are all response
tokens. It is masked besides when the target's greedy choice there is outside the draft vocabulary.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Loops = Literal["all", "twice"]
# Periods that are looked for, in tokens.
LONGEST_PERIOD = 64


def response_runs(mask_T: Tensor) -> list[range]:
    """For each response, the rows whose first draft lies inside it; rows 1..3 in the drawing."""
    runs: list[range] = []
    both_T = (mask_T.bool()[1:-1] & mask_T.bool()[2:]).tolist()
    for row, both in enumerate(both_T):
        if both and runs and runs[-1].stop == row:
            runs[-1] = range(runs[-1].start, row + 1)
        elif both:
            runs.append(range(row, row + 1))
    return runs


def chain_rows(mask_T: Tensor) -> range:
    """The rows from the first response's first to the last one's last (empty when no response has two tokens)."""
    runs = response_runs(mask_T)
    return range(runs[0].start, runs[-1].stop) if runs else range(0)


def counted(mask_T: Tensor, argmax_T: Tensor, member_V: Tensor, rows: range, step: int) -> Tensor:
    """Which of `rows` count at `step` (0-based): bool [len(rows)]."""
    T = len(mask_T)
    run_R = torch.ones(len(rows), dtype=torch.bool)
    t_R = torch.tensor(rows, dtype=torch.long)
    for ahead in range(1, step + 3):
        at_R = t_R + ahead
        run_R &= (at_R < T) & mask_T.bool()[at_R.clamp(max=T - 1)]
    best_R = argmax_T[(t_R + 1 + step).clamp(max=T - 1)].long()
    return run_R & (best_R >= 0) & member_V[best_R.clamp(min=0)]


def repeated(tokens_T: Tensor, longest: int = LONGEST_PERIOD) -> Tensor:
    """Which tokens belong to the third or a later repetition of a period of 1 to `longest` tokens: bool [T].

    A token repeats with period p when it equals the one p before. Once more than p tokens in a row do, two whole
    repetitions stand behind the newest of them:

        tokens           a  b  c  b  c  b  c  d
        equals 2 before  -  -  -  b  c  b  c  -
        in a row         0  0  0  1  2  3  4  0
        repeated (> 2)   -  -  -  -  -  yes yes -
    """
    out_T = torch.zeros(len(tokens_T), dtype=torch.bool)
    for period in range(1, min(longest, (len(tokens_T) - 1) // 2) + 1):
        same_T = tokens_T[period:] == tokens_T[:-period]
        at_T = torch.arange(1, len(same_T) + 1)
        # The last place before, or here, where the row of repeats was broken.
        broken_T = torch.where(same_T, 0, at_T).cummax(0).values
        out_T[period:] |= at_T - broken_T > period
    return out_T
