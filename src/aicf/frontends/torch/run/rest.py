"""What runs the graph around the streamed regions: Inductor, PyTorch op by op, or plain Python where only views are left."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.exc import RestartAnalysis
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import CppCompileError, InvalidCxxCompiler
from torch._subclasses.fake_tensor import FakeTensor

from aicf.frontends.torch.capture.flex_mods import FLEX
from aicf.frontends.torch.diagnostics import notices
from aicf.frontends.torch.diagnostics.failures import error_line, refuse_all
from aicf.frontends.torch.options import BackendOptions
from aicf.report import GraphReport

from .inductor import missing_directory, through_inductor
from .region_op import REGION, run_region
from .training import TRAINED

Module = torch.fx.GraphModule
_DETACH = torch.ops.aten.detach.default


def compile_rest(
    gm: Module, rewritten: Module | None, inputs: Sequence[Any], options: BackendOptions, report: GraphReport
) -> Any:
    """The module as a callable: through Inductor where that works and is wanted, else eagerly."""
    module = gm if rewritten is None else rewritten
    if rewritten is not None and options.rest == "auto" and only_regions(rewritten):
        report.rest = "nothing"
        return _as_python(rewritten, inputs)
    if options.rest == "eager" or (options.rest == "auto" and not has_compiler()):
        report.rest = "eager"
        return _as_python(module, inputs)
    report.rest = "inductor"
    try:
        return through_inductor(module, inputs)
    except (CppCompileError, InvalidCxxCompiler) as e:
        if options.rest == "inductor":
            raise
        _note_no_compiler(str(e).splitlines()[0])
        report.rest = "eager"
        return module.forward
    except RestartAnalysis:  # not an error: Dynamo traces again, with a float as a runtime value
        raise
    except Exception as e:
        no_folder = missing_directory(e)
        if no_folder and options.rest == "auto":  # Inductor needs a folder for its files
            warnings.warn(
                f"Inductor has no folder for its files ({no_folder}): what AICF does not stream runs eagerly", stacklevel=2
            )
            report.rest = "eager"
            return _as_python(module, inputs)
        if options.rest == "auto" and any(n.target is FLEX for n in module.graph.nodes):
            # Inductor's own kernels for it accept fewer inputs than eager does (no views as queries on a CPU, in PyTorch 2.13).
            notices.warn("Inductor fails on a flex_attention that is not streamed: the graph runs op by op, scores in memory")
            report.rest = "eager"
            return module.forward
        if rewritten is None:
            raise
        report.problem = f"Inductor does not take the rewritten graph ({error_line(e)})"
        refuse_all(report)
        return through_inductor(gm, inputs)


def only_regions(module: Module) -> bool:
    """Whether only views are left beside the regions, which need no code from Inductor."""
    aten = torch.ops.aten
    views = (
        operator.getitem, REGION, TRAINED, aten.sym_size.int, aten.view.default, aten.permute.default, aten.transpose.int,
        aten.t.default, aten.unsqueeze.default, aten.squeeze.dim, aten.expand.default, aten.slice.Tensor, aten.select.int,
        aten.detach.default,
    )  # fmt: skip
    return all(n.op in ("placeholder", "output") or (n.op == "call_function" and n.target in views) for n in module.graph.nodes)


def _as_python(module: Module, inputs: Sequence[Any]) -> Callable[..., Any]:
    """`module` run as Python, its regions without PyTorch's dispatcher where all inputs are plain tensors (Dynamo guards their
    types and dispatch keys)."""
    plain = (torch.Tensor, torch.nn.Parameter, FakeTensor)
    if all(type(x) in plain and not x.is_neg() for x in inputs if isinstance(x, torch.Tensor)):
        for node in module.graph.nodes:
            if node.target is REGION:
                _undo_detach(node)
                node.target = run_region
        module.recompile()
    return module.forward


_COMPILER: list[bool] = []


def has_compiler() -> bool:
    """Whether Inductor finds a C++ compiler; a note is given once when it does not."""
    if not _COMPILER:
        try:
            get_cpp_compiler()
            _COMPILER.append(True)
        except Exception as e:
            _COMPILER.append(False)
            _note_no_compiler(type(e).__name__)
    return _COMPILER[0]


def _note_no_compiler(why: str) -> None:
    warnings.warn(
        f"no working C++ compiler for Inductor ({why}): what AICF does not stream runs eagerly. Streamed regions need none. "
        'Set options={"rest": "eager"} to silence this.',
        stacklevel=3,
    )


def _undo_detach(call: torch.fx.Node) -> None:
    """Removes the detach ops before a region that is called without PyTorch's dispatcher, and so without autograd."""
    read: Any = call.args[1]
    call.args = (call.args[0], [x.args[0] if x.target is _DETACH else x for x in read], call.args[2])
    for x in read:
        if x.target is _DETACH and not x.users:
            x.graph.erase_node(x)
