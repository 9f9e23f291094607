"""Two machines are told apart by what their processors say, not by a name that may be hidden."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftwing.core import machine
from draftwing.core.machine import cpu_flags, cpu_has_bfloat16, read_bandwidth, this_machine

SAPPHIRE = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Intel(R) Xeon(R) Processor
stepping\t: 8
flags\t\t: fpu avx2 fma f16c avx512f avx512_vnni avx512_bf16 amx_bf16 amx_int8
power management:

processor\t: 1
model\t\t: 1
"""
ZEN = """vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC
stepping\t: 1
flags\t\t: fpu avx2 fma f16c avx512f avx512_vnni avx512_bf16
"""
ARM = "CPU implementer\t: 0x41\nCPU part\t: 0xd40\nCPU revision\t: 1\nFeatures\t: fp asimd asimddp i8mm bf16 sve\n"
OLD = "vendor_id\t: GenuineIntel\nmodel name\t: Old\nflags\t: fpu sse2 avx2\n"


@pytest.fixture
def cpuinfo(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    def set_text(text: str | None) -> None:
        def read(self: Path) -> str:
            if text is None:
                raise FileNotFoundError(self)
            return text

        machine._cpuinfo.cache_clear()
        monkeypatch.setattr(Path, "read_text", read)

    yield set_text
    monkeypatch.undo()
    machine._cpuinfo.cache_clear()


@pytest.mark.parametrize(
    ("text", "model", "instructions", "bfloat16"),
    [
        (
            SAPPHIRE,
            "GenuineIntel, family 6, model 143, stepping 8",
            ("amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni", "avx512f", "avx2", "fma", "f16c"),
            True,
        ),
        (
            ZEN,
            "AuthenticAMD, family 25, model 17, stepping 1",
            ("avx512_bf16", "avx512_vnni", "avx512f", "avx2", "fma", "f16c"),
            True,
        ),
        (
            ARM,
            "implementer 0x41, part 0xd40, revision 1",
            ("sve", "i8mm", "bf16", "asimddp", "asimd"),
            True,
        ),
        (OLD, "GenuineIntel", ("avx2",), False),
    ],
    ids=["sapphire rapids", "zen4", "arm", "old"],
)
def test_a_machine_says_what_tells_it_from_others(
    cpuinfo, text: str, model: str, instructions: tuple[str, ...], bfloat16: bool
) -> None:  # type: ignore[no-untyped-def]
    cpuinfo(text)
    found = this_machine(threads=1)
    assert (found.model, found.instructions) == (model, instructions)
    assert cpu_has_bfloat16() is bfloat16
    assert found.read_gb_s > 0 and found.cores >= 1 and found.memory_gb > 0


def test_a_system_that_says_nothing_is_still_described(cpuinfo) -> None:  # type: ignore[no-untyped-def]
    cpuinfo(None)
    assert cpu_flags() == frozenset() and not cpu_has_bfloat16()
    assert this_machine(1).model


def test_bandwidth_counts_all_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks one second a reading: a quarter of a gigabyte a second, however many threads."""
    ticks = iter(range(1000))
    monkeypatch.setattr(machine.time, "perf_counter", lambda: float(next(ticks)))
    for threads in (1, 2, 3):
        assert read_bandwidth(threads) == 256 * 2**20
