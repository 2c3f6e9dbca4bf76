"""Partial vectors (only the first elements exist) where the machine has no masked load: one function for all places."""

from __future__ import annotations

from aicf.backends.llvm.codegen.text import Function, Module


def first_elements(module: Module, kind: str, lanes: int) -> str:
    """The internal function (pointer, elements from lane to lane, how many exist) that reads those, and no others, and leaves
    zeros in the other lanes. The count may be below 0 or above `lanes`."""
    key = ("first", kind, lanes)
    if key in module.made:
        return module.made[key]
    name = module.made[key] = f"first{lanes}_{kind}"
    wide = f"<{lanes} x {kind}>"
    fn = Function(module, name, "ptr %p, i64 %step, i64 %n", wide, fast=True, inline=False, group=1)
    together, apart = fn.new_label("together"), fn.new_label("apart")
    whole = fn.op(f"and i1 {fn.compare('eq', '%step', 1)}, {fn.compare('sge', '%n', lanes)}")
    fn.do(f"br i1 {whole}, label %{together}, label %{apart}")
    fn.label(together)
    fn.do(f"ret {wide} {fn.op(f'load {wide}, ptr %p, align 1')}")
    fn.label(apart)
    kept = fn.alloca(wide)
    fn.do(f"store {wide} zeroinitializer, ptr {kept}")
    with fn.loop(0, fn.minimum("%n", lanes)) as lane:
        one = fn.op(f"load {kind}, ptr {fn.pointer('%p', fn.mul('%step', lane), kind)}")
        fn.do(f"store {kind} {one}, ptr {fn.pointer(kept, lane, kind)}")
    fn.do(f"ret {wide} {fn.op(f'load {wide}, ptr {kept}')}")
    return name
