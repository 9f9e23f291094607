"""What this machine is: its processor, the instructions that matter here, cores and memory. No torch import."""

from __future__ import annotations

import os
import platform
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict

# Instruction sets that change which kernels run, in the words of Linux; matrix units and dot products first.
_MATTERS = (
    "amx_bf16 amx_fp16 amx_int8 avx512_bf16 avx512_fp16 avx512_vnni avx512f avx_vnni avx2 fma f16c "
    "sve2 sve i8mm bf16 asimddp asimd"
).split()
_PROBE_BYTES = 256 * 2**20


class Machine(BaseModel):
    """Enough to tell two machines apart.

    `processor` is the marketing name, which a virtual machine may hide; `model` is what the processor itself says:
    vendor, family, model and stepping. `read_gb_s` is the rate at which `threads` cores read memory just now.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    processor: str
    model: str
    instructions: tuple[str, ...]
    cores: int
    memory_gb: float
    read_gb_s: float


def this_machine(threads: int) -> Machine:
    """The machine as it is now; reads a quarter of a gigabyte a few times."""
    return Machine(
        processor=cpu_name(),
        model=cpu_model(),
        instructions=tuple(name for name in _MATTERS if name in cpu_flags()),
        cores=usable_cores(),
        memory_gb=round(_memory_bytes() / 1e9, 1),
        read_gb_s=round(read_bandwidth(threads) / 1e9, 1),
    )


def read_bandwidth(threads: int, repeats: int = 5) -> float:
    """Bytes per second at which `threads` threads together read a buffer larger than the caches; the best of some."""
    parts = np.array_split(np.ones(_PROBE_BYTES // 8, dtype=np.int64), max(1, threads))
    best = float("inf")
    with ThreadPoolExecutor(max(1, threads)) as pool:
        for _ in range(repeats):
            start = time.perf_counter()
            list(pool.map(np.bitwise_or.reduce, parts))
            best = min(best, time.perf_counter() - start)
    return _PROBE_BYTES / best


@cache
def _cpuinfo() -> dict[str, str]:
    """What Linux says of the first core; empty elsewhere."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return {}
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def cpu_flags() -> frozenset[str]:
    """Feature flags of the first core as Linux names them; empty where it does not say."""
    info = _cpuinfo()
    return frozenset((info.get("flags") or info.get("Features") or "").split())


def cpu_has_bfloat16() -> bool:
    """True when products of bfloat16 run in hardware: AVX512-BF16, AMX or the Arm extension."""
    return bool(cpu_flags() & {"avx512_bf16", "amx_bf16", "bf16"})


def cpu_name() -> str:
    """The processor's name as the system gives it."""
    return _cpuinfo().get("model name") or platform.processor() or platform.machine()


def cpu_model() -> str:
    """Vendor, family, model and stepping (on Arm: implementer, part and revision)."""
    info = _cpuinfo()
    keys = ("vendor_id", "cpu family", "model", "stepping", "CPU implementer", "CPU part", "CPU revision")
    stated = [f"{key.removeprefix('CPU ').removeprefix('cpu ')} {info[key]}" for key in keys if key in info]
    return ", ".join(stated).replace("vendor_id ", "") or platform.machine()


def usable_cores() -> int:
    """Cores that this process may run on: affinity counted, shared among the processes of a torchrun launch."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 0
