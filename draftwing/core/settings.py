"""Where things are kept on this machine, and how its memory is handled."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path


def home() -> Path:
    """Folder of downloaded and converted models and data; DRAFTWING_HOME moves it."""
    stated = os.environ.get("DRAFTWING_HOME")
    if stated:
        return Path(stated).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "draftwing"


def keep_freed_memory() -> None:
    """Let glibc reuse large blocks instead of returning each to the system.

    Decoding in batches allocates and frees the same tens of megabytes in every layer; without this, the page
    faults of fresh blocks take a large part of the time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(mmap_threshold, 32 * 2**20)
