"""What people see while something runs: notes and progress on stderr, never on stdout."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

stderr = Console(stderr=True, highlight=False)


def note(text: str) -> None:
    """One line for a person, on stderr."""
    stderr.print(text, markup=False, soft_wrap=True)


class Meter(Protocol):
    """Tells how far a long run has come."""

    def advance(self, amount: float, text: str = "") -> None:
        """Add to the amount done; `text` replaces what stands beside the bar."""

    def resume(self, amount: float) -> None:
        """So much was done by an earlier run: it counts as done, and not for the rate."""


class _Bar:
    def __init__(self, progress: Progress, unit: str) -> None:
        self._progress, self._task, self._unit, self._done = progress, progress.task_ids[0], unit, 0.0

    def resume(self, amount: float) -> None:
        # Marked as completed before the clock starts, so that neither rate nor time left is made of it.
        self._progress.reset(self._task, completed=int(amount))

    def advance(self, amount: float, text: str = "") -> None:
        self._done += amount
        elapsed = self._progress.tasks[0].elapsed or 1e-9
        rate = f"{self._done / elapsed:,.1f} {self._unit}/s"
        self._progress.update(self._task, advance=amount, text=f"{rate}  {text}".rstrip())


@contextmanager
def progress(title: str, total: float, unit: str) -> Iterator[Meter]:
    """Show a bar with rate and time left. Off a terminal it writes a line now and then instead of moving."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[text]}"),
    )
    if not stderr.is_terminal:
        yield _Lines(title, total, unit)
        return
    with Progress(*columns, console=stderr) as bar:
        bar.add_task(title, total=total, text="")
        yield _Bar(bar, unit)


class _Lines:
    """The same for log files: a line every twentieth of the way, or every half minute."""

    def __init__(self, title: str, total: float, unit: str) -> None:
        self._title, self._total, self._unit = title, total, unit
        self._done, self._start = 0.0, time.monotonic()
        self._said_at, self._said = self._start, 0.0
        self._before = 0.0

    def resume(self, amount: float) -> None:
        self._before = self._done = self._said = amount

    def advance(self, amount: float, text: str = "") -> None:
        self._done += amount
        now = time.monotonic()
        if now - self._said_at < 30 and self._done - self._said < self._total / 20:
            return
        rate = (self._done - self._before) / max(now - self._start, 1e-9)
        left = max(self._total - self._done, 0) / max(rate, 1e-9)
        share = 100 * self._done / self._total
        note(f"{self._title}: {share:.0f} %, {rate:,.1f} {self._unit}/s, {left / 60:.0f} min left  {text}".rstrip())
        self._said_at, self._said = now, self._done
