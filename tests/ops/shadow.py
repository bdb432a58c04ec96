"""Run operators eagerly and, beside each ATen call, our type rule on the types of its arguments;
compare.

`with Shadow() as s: f(real tensors)`; then `s.wrong` lists disagreements, `s.missing` overloads
without a rule. `symbolic=True` gives every size of every tensor argument a symbol of its own (hint:
the real size) and compares the rule's answer at the hint.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import lostwax.ops
from lostwax.ops.registry import operator
from lostwax.sym import Expr, ShapeEnv
from lostwax.types import TensorType


def type_of(t: torch.Tensor) -> TensorType:
    out = TensorType(tuple(t.shape), t.dtype, t.device, tuple(t.stride()), t.storage_offset())
    _ = out.is_contiguous
    return out


def symbolic_type_of(t: torch.Tensor, env: ShapeEnv) -> TensorType:
    """Symbols for sizes; strides symbolic where the tensor is contiguous, concrete otherwise."""
    if not t.is_contiguous() or t.storage_offset() or t.dim() == 0:
        return type_of(t)
    return TensorType(tuple(env.symbol(hint=s) for s in t.shape), t.dtype, t.device)


def at_hint(v: Any) -> Any:
    return v.hint if isinstance(v, Expr) else v


def significant(size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...]:
    if 0 in size:
        return ()
    return tuple(st for s, st in zip(size, stride, strict=True) if s != 1)


class Fresh:
    """Answers for data-dependent rules: the sizes eager found, in order of asking."""

    def __init__(self, out: Any) -> None:
        self.sizes = [
            s for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor) for s in t.shape[:1]
        ]

    def size(self, upper: Any = None, lower: int = 0) -> int:
        return self.sizes[0] if self.sizes else 0


class Shadow(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self, symbolic: bool = False) -> None:
        super().__init__()
        self.symbolic = symbolic
        self.checked: Counter[str] = Counter()
        self.missing: Counter[str] = Counter()
        self.wrong: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        record = operator(func)
        if record.rule is None or record.kind == "mixed":
            self.missing[str(func)] += record.rule is None
            return func(*args, **kwargs)
        env = ShapeEnv()
        convert = (lambda t: symbolic_type_of(t, env)) if self.symbolic else type_of
        targs, tkwargs = pytree.tree_map_only(torch.Tensor, convert, (args, kwargs))
        if record.kind == "out":
            tkwargs = {k: v for k, v in tkwargs.items() if k not in record.out_names}
        before = pytree.tree_map_only(torch.Tensor, type_of, (args, kwargs))
        out = func(*args, **kwargs)
        try:
            fresh = (Fresh(out),) if record.data_dependent else ()
            got = record.rule(*fresh, *targs, **tkwargs)
        except Exception as e:
            self.wrong.append(f"{func} raised {type(e).__name__}: {e} for {before}")
            return out
        self.checked[str(func)] += 1
        if record.kind in ("inplace", "out") and not record.changes_metadata:
            return out
        for a, b in zip(pytree.tree_leaves(out), pytree.tree_leaves(got), strict=False):
            if isinstance(a, torch.Tensor):
                self._compare(func, before, type_of(a), b)
        if len(pytree.tree_leaves(out)) != len(pytree.tree_leaves(got)):
            self.wrong.append(f"{func} number of outputs for {before}")
        return out

    def _compare(self, func: Any, before: Any, want: TensorType, got: TensorType) -> None:
        size, stride = tuple(map(at_hint, got.size)), tuple(map(at_hint, got.stride))
        strides = stride == want.stride
        if self.symbolic:
            strides = significant(size, stride) == significant(want.size, want.stride)
        if size != want.size or not strides or got.dtype != want.dtype or got.device != want.device:
            self.wrong.append(
                f"{func} want {want} {want.stride} got {got} {got.stride} for {before}"
            )


assert lostwax.ops
