"""What a call needs beyond its inputs and outputs stays below 4 MiB a thread at any length, by accounts of what is allocated."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from aicf.backends.llvm.build import host_target
from aicf.backends.llvm.codegen.module import buffer_bytes
from aicf.bench.cases import CASES, Case, Size, make_inputs
from aicf.bench.search import sites
from aicf.driver import Options, rescheduled

LIMIT = 4 << 20
TOKENS = 88  # a number that no other size has


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_working_memory_is_bounded_at_any_length(case: Case):
    tensors = make_inputs(case, Size(1, 4, TOKENS, 64), torch.float32)
    for t in tensors.values():
        for axis, length in enumerate(t.shape):
            if length == TOKENS:
                torch._dynamo.mark_dynamic(t, axis)
    (site,) = sites(case.plain, list(tensors.values()), threads=2)
    tokens = [name for name, value in site.sizes.items() if value == TOKENS]
    assert tokens, site.sizes
    for threads in (1, 2):
        for n in (1024, 65536):
            sizes = {**site.sizes, **dict.fromkeys(tokens, n)}
            result = rescheduled(site.result, Options(fuse="always", threads=threads), sizes)
            executable = result.executable
            assert executable is not None and result.schedule is not None
            private = buffer_bytes(executable.kernel, host_target())
            shared = executable.scratch_bytes(executable.sizes(sizes))
            used = private + shared / threads
            assert used < LIMIT, f"{n} tokens, {threads} threads, {result.schedule.brief}: {private} + {shared} / threads"
