"""What a verify of m tokens costs: the number that decides whether drafts pay, measured where it will be paid."""

from __future__ import annotations

import random
import statistics
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from typing import Annotated

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from draftwing.core.errors import UserError
from draftwing.core.machine import cpu_flags, cpu_model, cpu_name
from draftwing.core.settings import home
from draftwing.formats.files import digest_of, write_json
from draftwing.target.backend import Backend

WARM_UP = 2
# Sizes that are measured when an engine starts, how often, and behind how much text; others lie on lines between them.
SIZES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
START_ROUNDS, START_CONTEXT = 3, 256
# A cycle's time corrects its own size's neighbours by so much of the difference, and all sizes by so much.
NEAR, ALL = 0.05, 0.02
_KEPT = TypeAdapter(dict[int, Annotated[float, Field(gt=0, allow_inf_nan=False)]])


class VerifyCost:
    """Seconds of a verify of 1 to the largest measured number of tokens: lines between measured sizes, corrected by
    what cycles take. A difference counts half of what was expected at most, since a machine pauses now and then."""

    def __init__(self, measured: dict[int, float]) -> None:
        if 1 not in measured or min(measured.values()) <= 0:
            raise ValueError("costs are above 0 and begin at one token")
        self._sizes = sorted(measured)
        self._at = [measured[size] for size in self._sizes]
        # Of every size, the measured ones beside it and how far it lies from the left one to the right one.
        self._between = [(0, 0, 0.0)]
        for right in range(1, len(self._sizes)):
            first, last = self._sizes[right - 1], self._sizes[right]
            self._between += [(right - 1, right, (size - first) / (last - first)) for size in range(first, last)]
        self._between.append((len(self._at) - 1, len(self._at) - 1, 0.0))
        self._draw()

    def correct(self, tokens: int, seconds: float) -> None:
        """A verify of so many tokens took so long."""
        if not 1 <= tokens < len(self.seconds):
            return
        expected = self.seconds[tokens]
        off = max(-0.5 * expected, min(0.5 * expected, seconds - expected))
        right = bisect_left(self._sizes, tokens)
        for place, size in enumerate(self._sizes):
            near = 0.0
            if place in (right - 1, right):
                gap = self._sizes[right] - self._sizes[right - 1] if right else 1
                near = max(0.0, 1 - abs(size - tokens) / gap)
            self._at[place] = max(1e-6, self._at[place] + off * (ALL + near * NEAR))
        self._draw()

    def _draw(self) -> None:
        """`seconds[m]`, rising with m: more tokens never cost less, whatever was measured."""
        at = list(accumulate(self._at, max))
        self.seconds = [at[left] + share * (at[right] - at[left]) for left, right, share in self._between]


def measure_cost(backend: Backend, taps: tuple[int, ...]) -> dict[int, float]:
    """Median seconds of a verify of each of SIZES, as far as the context holds them. Takes a fraction of a second."""
    capacity = backend.cache.capacity
    base = min(START_CONTEXT, max(1, capacity // 2))
    sizes = [size for size in SIZES if base + size <= capacity] or [1]
    text = [number % backend.config.vocab_size for number in range(base + max(sizes))]
    taken = verify_seconds(backend, text, sizes, taps, START_ROUNDS)
    backend.cache.rollback(0, 0)
    return {size: statistics.median(seconds) for size, seconds in taken.items()}


def kept_cost(backend: Backend, fingerprint: str, taps: tuple[int, ...]) -> dict[int, float]:
    """`measure_cost`, kept for the next start on this machine with this model, dtype, threads and context.

    A file that can not be read is measured anew, one that can not be written is done without.
    """
    store = backend.cache.keys_LSKCD
    about = {
        "model": fingerprint,
        "backend": type(backend).__name__,
        "dtype": str(store.dtype),
        "device": torch.cuda.get_device_name(store.device) if store.device.type == "cuda" else str(store.device),
        "threads": torch.get_num_threads(),
        "processor": [cpu_name(), cpu_model(), sorted(cpu_flags())],
        "torch": torch.__version__,
        "taps": len(taps),
        "room": min(backend.cache.capacity, START_CONTEXT + SIZES[-1]),
    }
    path = home() / "costs" / f"{digest_of(about)[:16]}.json"
    try:
        kept: dict[int, float] = _KEPT.validate_json(path.read_bytes())
        if min(kept, default=0) == 1:
            return kept
    except (OSError, ValueError):
        pass
    measured = measure_cost(backend, taps)
    with suppress(UserError):
        write_json(path, measured)
    return measured


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
            finish(text_1M)
            start = time.perf_counter()
            backend.forward(rows_1M, range(1), taps=taps)
            finish(text_1M)
            elapsed = time.perf_counter() - start
            backend.cache.rollback(0, base)
            if number >= 0:
                taken[size].append(elapsed)
        if number >= 0:
            said(1)
    return taken


def finish(tensor: Tensor | None) -> None:
    """Wait for the tensor's device, which may compute while Python goes on: a time taken before says nothing."""
    if tensor is not None and tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
