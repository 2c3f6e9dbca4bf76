"""What a program has around a compiled function: checkpoints, saved-tensor hooks, marked sizes, fake tensors, forks."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import aicf
from aicf.frontends.torch.backend import aicf_backend
from aicf.frontends.torch.run.region_op import REGION
from aicf.report import GraphReport
from tests.contract import assert_contract


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def self_attention(x: Tensor) -> Tensor:
    return (x @ x.mT / 4).softmax(-1) @ x


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / 4).softmax(-1) @ v


def scaled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return attention(q.sin(), k, v).relu()


def made(*shapes: tuple[int, ...]) -> list[Tensor]:
    g = torch.Generator().manual_seed(0)
    return [torch.randn(*s, generator=g) for s in shapes]


def compiled(fn: Any, reports: list[GraphReport] | None = None, **options: Any) -> Any:
    given: dict[str, Any] = {"rest": "eager", "fuse": "always", **options}
    if reports is not None:
        given["report"] = reports.append
    return torch.compile(fn, backend="aicf", options=given)


# ------------------------------------------------------------------------------------------------ checkpoints and hooks


def gradient(fn: Any, x: Tensor, **kwargs: Any) -> Tensor:
    given = x.clone().requires_grad_()
    result: Any = checkpoint(fn, given, **kwargs) if kwargs else fn(given)
    return torch.autograd.grad(result.square().sum(), given)[0]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_a_checkpoint_around_a_compiled_block(reentrant: bool, steps: int) -> None:
    (x,) = made((2, 24, 16))
    fast = compiled(self_attention)
    for _ in range(steps):
        if reentrant:  # gives gradients to leaves only
            given = x.clone().requires_grad_()
            checkpoint(fast, given, use_reentrant=True).square().sum().backward()  # type: ignore[union-attr]
            got: Any = given.grad
        else:
            got = gradient(fast, x, use_reentrant=False)
        assert_contract(got, gradient(self_attention, x), gradient(self_attention, x.double()), "f32")


def test_a_reentrant_checkpoint_runs_its_first_forward_streamed() -> None:
    (x,) = made((2, 24, 16))
    reports: list[GraphReport] = []
    checkpoint(compiled(self_attention, reports), x.requires_grad_(), use_reentrant=True).sum().backward()  # type: ignore[union-attr]
    assert [r.status for g in reports for r in g.regions] == ["streamed", "streamed"]


def test_hooks_see_what_the_program_saves_and_nothing_else() -> None:
    (x,) = made((2, 24, 16))
    seen: list[type] = []

    def pack(t: Tensor) -> Any:
        seen.append(type(t))
        return t.detach().numpy().copy()

    def through(fn: Any, given: Tensor) -> Tensor:
        with saved_tensors_hooks(pack, torch.from_numpy):
            result = fn(given)
        return torch.autograd.grad(result.square().sum(), given)[0]

    fast = compiled(self_attention)
    for _ in range(2):
        expected = through(self_attention, x.clone().requires_grad_())
        in_eager = len(seen)
        seen.clear()
        got = through(fast, x.clone().requires_grad_())
        assert set(seen) == {Tensor} and len(seen) <= in_eager
        seen.clear()
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    with torch.no_grad(), saved_tensors_hooks(pack, torch.from_numpy):
        torch.testing.assert_close(fast(x), self_attention(x), rtol=1e-5, atol=1e-5)
    assert seen == []


def test_activations_saved_elsewhere() -> None:
    (x,) = made((2, 24, 16))
    with save_on_cpu():
        got = gradient(compiled(self_attention), x)
    torch.testing.assert_close(got, gradient(self_attention, x), rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------ sizes that are marked


@pytest.mark.parametrize("axes", [(3,), (0, 1, 2, 3)])
def test_a_width_that_is_marked_dynamic_is_not_fixed(axes: tuple[int, ...]) -> None:
    reports: list[GraphReport] = []
    fast = compiled(attention, reports)
    for d in (8, 16):
        args = made(*((2, 3, 24, d),) * 3)
        for x in args:
            torch._dynamo.mark_dynamic(x, axes)
        with torch.no_grad():
            torch.testing.assert_close(fast(*args), attention(*args))
    (r,) = [r for g in reports for r in g.regions]
    assert r.status == "refused" and "mark_dynamic" in r.reason and "maybe_mark_dynamic" in r.reason


@pytest.mark.parametrize("mark, axis", [("mark_dynamic", 0), ("mark_dynamic", 1), ("mark_dynamic", 2), ("maybe_mark_dynamic", 3)])
def test_other_marks_stream(mark: str, axis: int) -> None:
    reports: list[GraphReport] = []
    args = made(*((2, 3, 24, 16),) * 3)
    for x in args:
        getattr(torch._dynamo, mark)(x, axis)
    with torch.no_grad():
        torch.testing.assert_close(compiled(attention, reports)(*args), attention(*args), rtol=1e-5, atol=1e-5)
    assert [r.status for g in reports for r in g.regions] == ["streamed"]


def test_marked_numbers_of_heads_in_groups_run() -> None:
    def grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    args = made((2, 6, 24, 16), (2, 3, 24, 16), (2, 3, 24, 16))
    for x in args:
        torch._dynamo.mark_dynamic(x, 1)
    with torch.no_grad():
        torch.testing.assert_close(compiled(grouped)(*args), grouped(*args), rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------ fake tensors and listeners


@pytest.mark.parametrize("rest", ["eager", "auto"])
@pytest.mark.parametrize("fn", [attention, scaled])
def test_fake_tensors_give_fake_results(fn: Any, rest: str) -> None:
    fast = compiled(fn, rest=rest)
    with FakeTensorMode() as mode:
        fakes = made(*((2, 3, 24, 16),) * 3)
    real = made(*((2, 3, 24, 16),) * 3)
    with torch.no_grad():
        for args in (fakes, real, fakes, real):
            got, expected = fast(*args), fn(*args)
            assert type(got) is type(expected) and got.stride() == expected.stride()
            if args is real:
                torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
        with mode:
            got, expected = fast(*fakes), fn(*fakes)
            assert type(got) is type(expected) and got.shape == expected.shape


def test_fake_tensors_are_explained() -> None:
    with FakeTensorMode():
        fakes = made(*((2, 3, 24, 16),) * 3)
    with torch.no_grad():
        (r,) = aicf.explain(attention, *fakes, options={"fuse": "always"}).regions
    assert r.status == "streamed"


def test_meta_tensors_give_meta_results() -> None:
    args = [x.to("meta") for x in made(*((2, 3, 24, 16),) * 3)]
    with torch.no_grad():
        got = compiled(attention)(*args)
    assert got.device.type == "meta" and got.shape == args[0].shape


def test_a_region_is_seen_by_who_listens_to_the_dispatcher() -> None:
    heard: list[Any] = []

    class Listener(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            heard.append(func)
            return func(*args, **(kwargs or {}))

    inside: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        graph = aicf_backend(gm, inputs, options={"rest": "eager", "fuse": "always"})

        def run(*args: Any) -> Any:
            inside.append(lambda: graph(*args))
            return graph(*args)

        return run

    with torch.no_grad():
        expected = torch.compile(attention, backend=backend)(*made(*((2, 3, 24, 16),) * 3))
        with Listener():  # Dynamo itself compiles nothing then, and calls what it has
            (got,) = inside[0]()
    assert REGION in heard
    assert torch.equal(got, expected)


def test_floating_point_operations_are_counted_as_ever() -> None:
    args = made(*((2, 3, 24, 16),) * 3)
    counts: list[int] = []
    fast = compiled(attention)
    with torch.no_grad():
        for fn in (attention, fast, fast):
            with FlopCounterMode(display=False) as counter:
                fn(*args)
            counts.append(counter.get_total_flops())
            fast(*args)
    assert counts[0] == counts[1] == counts[2] > 0


@pytest.mark.parametrize("strict", [False, True])
def test_a_compiled_function_can_be_exported(strict: bool) -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fast = compiled(attention)

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return self.fast(q, k, v)

    args, others = made(*((2, 3, 24, 16),) * 3), [x + 1 for x in made(*((2, 3, 24, 16),) * 3)]
    with torch.no_grad():
        exported: Any = torch.export.export(Module(), tuple(args), strict=strict).module()
        torch.testing.assert_close(exported(*others), attention(*others))


def test_torch_func_over_a_compiled_function() -> None:
    q, k, v = made(*((2, 3, 24, 16),) * 3)
    fast = compiled(attention)
    with torch.no_grad():
        fast(q, k, v)  # compiled before a transform comes
        torch.testing.assert_close(torch.vmap(fast)(q, k, v), attention(q, k, v))
        ours, theirs = (torch.func.jvp(lambda x, f=f: f(x, k, v), (q,), (k,))[1] for f in (fast, attention))  # type: ignore[misc]
    torch.testing.assert_close(ours, theirs)
    ours, theirs = (torch.func.grad(lambda x, f=f: f(x, k, v).sum())(q) for f in (fast, attention))  # type: ignore[misc]
    torch.testing.assert_close(ours, theirs)


# ------------------------------------------------------------------------------------------------ forks


def _child(fn: Any, args: list[Any], results: Any) -> None:
    torch.set_num_threads(1)  # as workers of a DataLoader do; PyTorch's own threads are as lost as any
    with torch.no_grad():
        results.put(fn(*(torch.from_numpy(a) for a in args)).numpy())


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system does not fork")
@pytest.mark.parametrize("used", [True, False], ids=["after use", "before use"])
def test_a_forked_child_calls_what_its_parent_compiled(used: bool) -> None:
    args = made(*((2, 3, 70, 16),) * 3)
    fast = aicf.compile(attention, fuse="always", threads=2, rest="eager")
    with torch.no_grad():
        expected = fast(*args)
        if not used:
            torch._dynamo.reset()
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()
    children = [context.Process(target=_child, args=(fast, [a.numpy() for a in args], results), daemon=True) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    try:
        assert [c.exitcode for c in children] == [0, 0], "a child hangs or fails"
    finally:
        for child in children:
            child.kill()
    for _ in children:
        assert (results.get() == expected.numpy()).all()  # the same number of threads gives the same bits
    with torch.no_grad():
        assert torch.equal(fast(*args), expected)
