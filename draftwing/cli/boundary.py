"""Where exceptions turn into one sentence and an exit code, and where answers reach stdout."""

from __future__ import annotations

import functools
import json
import signal
from collections.abc import Callable
from typing import Any, ParamSpec

import typer

from draftwing.core.console import note
from draftwing.core.errors import UserError

Params = ParamSpec("Params")
USER_ERROR, INTERRUPTED = 2, 130


def verb(function: Callable[Params, None]) -> Callable[Params, None]:
    """Wrap a verb: a UserError ends with code 2, Ctrl-C or a termination with 130; bugs keep their traceback."""

    @functools.wraps(function)
    def wrapped(*args: Params.args, **kwargs: Params.kwargs) -> None:
        # Both are set: a shell starts background jobs with SIGINT ignored, and Python then leaves it so.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupt)
        try:
            function(*args, **kwargs)
        except UserError as error:
            note(f"draftwing: {error}")
            raise typer.Exit(USER_ERROR) from None
        except KeyboardInterrupt:
            note("Interrupted. What was whole is kept; the same command goes on from there.")
            raise typer.Exit(INTERRUPTED) from None
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            said = (str(error) or "allocation failed").splitlines()[0]
            note(
                f"draftwing: The memory does not suffice ({said}). "
                "Lower --batch, --batch-tokens, --context or --max-new-tokens, or end other programs."
            )
            raise typer.Exit(USER_ERROR) from None
        except BrokenPipeError:
            # The reader of stdout went away (`| head`): nobody is left to tell.
            raise typer.Exit(0) from None

    return wrapped


def _is_out_of_memory(error: Exception) -> bool:
    """Python's own kind, the one of torch on a GPU, or torch's message on the CPU, which has no kind of its own."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    return bool(kinds & {"MemoryError", "OutOfMemoryError"}) or "DefaultCPUAllocator: " in str(error)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def print_json(content: Any) -> None:
    """The machine-readable answer, on stdout."""
    typer.echo(json.dumps(content, indent=1, ensure_ascii=False))
