"""What a verify of m tokens costs: the number that decides whether drafts pay, measured where it will be paid."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import torch

from draftwing.target.backend import Backend

WARM_UP = 2


def verify_seconds(
    backend: Backend,
    text: list[int],
    sizes: list[int],
    taps: tuple[int, ...],
    rounds: int,
    said: Callable[[int], None] = lambda done: None,
) -> dict[int, list[float]]:
    """Wall seconds of one forward of m tokens with their logits, for each m of `sizes`, once in each of `rounds`.

    The last max(sizes) tokens of `text` are verified after the others, which stay in slot 0's cache. Each round
    takes the sizes in an order of its own, so that a slow spell of the machine falls on all of them alike. `said` is
    told of each round that is done.
    """
    device = backend.cache.keys_LSKCD.device
    base = len(text) - max(sizes)
    if base < 1:
        raise ValueError(f"{len(text)} tokens leave no context before {max(sizes)} tokens to verify")
    text_1M = torch.tensor([text], device=device)
    backend.cache.rollback(0, 0)
    backend.forward(text_1M[:, :base], range(1), logits="none")
    order, shuffle = list(sizes), random.Random(0)
    taken: dict[int, list[float]] = {size: [] for size in sizes}
    for number in range(-WARM_UP, rounds):
        shuffle.shuffle(order)
        for size in order:
            rows_1M = text_1M[:, base : base + size]
            _finish(device)
            start = time.perf_counter()
            backend.forward(rows_1M, range(1), taps=taps)
            _finish(device)
            elapsed = time.perf_counter() - start
            backend.cache.rollback(0, base)
            if number >= 0:
                taken[size].append(elapsed)
        if number >= 0:
            said(1)
    return taken


def _finish(device: torch.device) -> None:
    """Wait for a device that computes while Python goes on."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
