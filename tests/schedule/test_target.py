"""Targets: this machine as the operating system describes it, and the described ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from aicf.schedule import TARGETS, CpuTarget, GpuTarget, describe, host_target, named_target, target


def machine(root: Path, cpus: list[tuple[str, str]], caches: list[dict[str, str]]) -> Path:
    """A /sys/devices/system/cpu with (package, core) of each processor and the caches of the first."""
    for number, (package, core) in enumerate(cpus):
        topology = root / f"cpu{number}" / "topology"
        topology.mkdir(parents=True)
        (topology / "physical_package_id").write_text(package + "\n")
        (topology / "core_id").write_text(core + "\n")
    for number, cache in enumerate(caches):
        place = root / "cpu0" / "cache" / f"index{number}"
        place.mkdir(parents=True)
        for name, text in cache.items():
            (place / name).write_text(text + "\n")
    return root


def cache(level: str, kind: str, size: str, shared: str = "0", ways: str = "8") -> dict[str, str]:
    return {"level": level, "type": kind, "size": size, "shared_cpu_list": shared, "ways_of_associativity": ways}


def test_caches_are_read_from_sysfs(tmp_path: Path):
    root = machine(
        tmp_path,
        [("0", "0")],
        [
            cache("1", "Data", "48K", "0-1", "12"),
            cache("1", "Instruction", "32K"),
            cache("2", "Unified", "2048K", "0,1"),
            cache("3", "Unified", "30M", "0-31,64-95"),
        ],
    )
    assert target._linux_caches(root) == {1: (48 * 1024, 12, 2), 2: (2 * 1024**2, 8, 2), 3: (30 * 1024**2, 8, 64)}
    assert target._linux_caches(tmp_path / "nothing") == {}


def test_hardware_threads_of_a_core_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    root = machine(tmp_path, [("0", "0"), ("0", "1"), ("0", "0"), ("0", "1"), ("1", "0")], [])
    monkeypatch.setattr(target.os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 4}, raising=False)
    assert target._cores(root) == 3
    monkeypatch.setattr(target.os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
    assert target._cores(root) == 1
    monkeypatch.delattr(target.os, "sched_getaffinity")
    monkeypatch.setattr(target.os, "cpu_count", lambda: 6)
    assert target._cores(tmp_path / "nothing") == 6


def test_instruction_sets(tmp_path: Path):
    info = tmp_path / "cpuinfo"
    info.write_text(
        "processor : 0\nvendor_id : AuthenticAMD\ncpu family : 25\nflags : fpu avx2 fma avx512f\n\nprocessor : 1\nflags : fpu\n"
    )
    assert target._cpuinfo(info) == (frozenset({"fpu", "avx2", "fma", "avx512f"}), "AuthenticAMD", 25)
    assert target._cpuinfo(tmp_path / "nothing") == (frozenset(), "", 0)
    for flags, vendor, family, expected in (
        ({"avx2", "fma"}, "GenuineIntel", 6, (256, 16, 2)),
        ({"avx2", "fma", "avx512f"}, "GenuineIntel", 6, (512, 32, 2)),
        ({"avx2", "fma", "avx512f"}, "AuthenticAMD", 25, (512, 32, 1)),
        ({"avx2", "fma", "avx512f"}, "AuthenticAMD", 26, (512, 32, 2)),
        ({"sse2"}, "GenuineIntel", 6, (128, 16, 2)),
        (set[str](), "", 0, (256, 16, 2)),
    ):
        found = target._instructions("x86_64", frozenset(flags), vendor, family)
        assert (found.vector_bits, found.registers, found.fma_per_cycle) == expected
    assert target._instructions("arm64", frozenset(), "", 0).vector_bits == 128
    assert target._instructions("x86_64", frozenset({"avx512f", "amx_tile", "amx_bf16"}), "GenuineIntel", 6).matrix_flops > 0


def test_macos_answers_are_understood():
    answers = {"hw.perflevel0.l1dcachesize": "131072", "hw.perflevel0.l2cachesize": "12582912", "hw.perflevel0.cpusperl2": "4"}
    assert target._darwin_caches(lambda name: answers.get(name, "")) == {1: (131072, 8, 1), 2: (12582912, 8, 4)}
    assert target._darwin_caches(lambda _: "") == {}


@pytest.mark.parametrize("system", ["Linux", "Darwin", "Windows"])
def test_the_host_is_described_on_every_system(system: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(target.platform, "system", lambda: system)
    monkeypatch.setattr(target, "_sysctl", lambda _: "")
    host = host_target()
    assert host == host_target()
    assert host.name == "host" and host.kind == "cpu" and host.llvm_cpu == "native"
    assert host.cores >= 1 and host.vector_bits in (128, 256, 512)
    assert 8 * 1024 <= host.l1d <= host.l2 and host.l3 >= 0
    assert "host: cpu" in describe(host)


def test_named_targets():
    assert named_target("host") == host_target()
    assert named_target("avx2") is TARGETS["avx2"]
    with pytest.raises(KeyError, match="no target 'z80'; known: host, avx2"):
        named_target("z80")
    with pytest.raises(FrozenInstanceError):
        TARGETS["h100"].sms = 1  # type: ignore[misc,union-attr]


@pytest.mark.parametrize(
    ("name", "tflops"),
    [("a100", 312), ("rtx4090", 165.2), ("h100", 989.4), ("h200", 989.4), ("b200", 2250), ("rtx5090", 209.5), ("mi300x", 1307.4)],
)
def test_derived_rates_give_the_published_peak_back(name: str, tflops: float):
    """The flop per clock and SM are whole powers of two times the clock and SMs; they must meet the data sheet within 1 %."""
    gpu = TARGETS[name]
    assert isinstance(gpu, GpuTarget)
    assert gpu.mma_flops * gpu.sms * gpu.ghz / 1000 == pytest.approx(tflops, rel=0.01)


def test_a_tile_gets_the_best_matrix_instruction_that_it_fills():
    """A warp group's instruction on Hopper needs 64 rows and four warps; smaller tiles get a warp's, at its rate."""
    h100, a100, mi300x = TARGETS["h100"], TARGETS["a100"], TARGETS["mi300x"]
    assert isinstance(h100, GpuTarget) and isinstance(a100, GpuTarget) and isinstance(mi300x, GpuTarget)
    assert [h100.mma_for(rows, 4).name for rows in (16, 32, 64, 128)] == ["HMMA", "HMMA", "HGMMA", "HGMMA"]
    assert h100.mma_for(64, 2).name == "HMMA"
    assert h100.mma_for(16, 4).flops < h100.mma_flops
    assert {a100.mma_for(rows, 4).name for rows in (16, 64)} == {"HMMA"}
    assert [mi300x.mma_for(rows, 4).rows for rows in (16, 32)] == [16, 32]


def test_descriptions(golden: Callable[[str, str], None]):
    golden("targets.txt", "\n".join(describe(t) for t in TARGETS.values()) + "\n")
    kinds: dict[str, Any] = {"cpu": CpuTarget, "gpu": GpuTarget}
    assert all(isinstance(t, kinds[t.kind]) and str(t) == describe(t) for t in TARGETS.values())
