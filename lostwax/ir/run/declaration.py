"""Which sizes of a program's inputs vary, as code to paste: `dynamic_shapes={"x": {0: Dim("n")}}`.

It is read off the symbols of the inputs, which keep the names and limits that the user declared;
errors propose it with more sizes that vary. Must not refuse a call: `captured_call.py` does.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils._pytree import TreeSpec

from lostwax.ir.pytree import MAPPINGS, child_steps, mapping_keys
from lostwax.ir.run.leaves import FloatLeaf, Leaf, NumberLeaf, TensorLeaf
from lostwax.sym import Expr, Symbol
from lostwax.sym.expressions.affine import read_affine

Place = tuple[int, int | None]
"""A number of a call: the index of its leaf, and the dimension if that is a tensor."""


def declare_sizes(
    in_spec: TreeSpec,
    names: Sequence[str],
    leaves: Sequence[Leaf],
    apart: Mapping[Place, Hashable] | None = None,
    widened: Mapping[Symbol, int] | None = None,
) -> str:
    """Return the declaration of all that varies in a call.

    The places in `apart` vary as well, or apart from the sizes that they hung on; those with the
    same key get one Dim. The limits of a symbol in `widened` are made to admit its value.
    """
    apart, widened = apart or {}, widened or {}
    used = {str(s.declared) for leaf in leaves for e in _symbolic(leaf) for s in e.symbols()}
    fresh = iter(name for name in _names() if name not in used)
    dims: dict[Hashable, str] = {}

    def entry_at(place: Place, number: Any) -> str | None:
        if place in apart:
            if place[1] is None:
                return "Dim.DYNAMIC"
            if apart[place] not in dims:
                dims[apart[place]] = f"Dim({json.dumps(next(fresh))})"
            return dims[apart[place]]
        return _entry_text(number, widened) if isinstance(number, Expr) else None

    parts = []
    for i, leaf in enumerate(leaves):
        if isinstance(leaf, TensorLeaf):
            found = {d: entry_at((i, d), size) for d, size in enumerate(leaf.size)}
            sizes = [f"{d}: {text}" for d, text in found.items() if text]
            parts.append(f"{{{', '.join(sizes)}}}" if sizes else None)
        elif isinstance(leaf, FloatLeaf):
            parts.append("Dim.DYNAMIC")
        else:
            parts.append(entry_at((i, None), getattr(leaf, "value", None)))
    positional, by_name = in_spec.children()
    rest = iter(parts)
    trees = [_tree_text(tree, rest) for tree in (*positional.children(), *by_name.children())]
    said = (f"{json.dumps(name)}: {t}" for name, t in zip(names, trees, strict=True) if t)
    return f"dynamic_shapes={{{', '.join(said)}}}"


def _symbolic(leaf: Leaf) -> list[Expr]:
    if isinstance(leaf, NumberLeaf):
        return [leaf.value]
    sizes = leaf.size if isinstance(leaf, TensorLeaf) else ()
    return [size for size in sizes if isinstance(size, Expr)]


def _names() -> Iterator[str]:
    yield "n"
    count = 1
    while True:
        yield f"n_{count}"
        count += 1


def _entry_text(e: Expr, widened: Mapping[Symbol, int]) -> str | None:
    """Return the entry of a number; None if no declaration can say it."""
    form = read_affine(e)
    if form is None:
        return None
    text = _dim_text(form.symbol, widened.get(form.symbol))
    scaled = text if form.factor == 1 else f"{form.factor}*{text}"
    sign = "-" if form.offset < 0 else "+"
    return f"{scaled} {sign} {abs(form.offset)}" if form.offset else scaled


def _dim_text(symbol: Symbol, admitted: int | None) -> str:
    """Return the Dim or hint that a symbol was declared by."""
    lo, hi = symbol.lo, symbol.hi
    if admitted is not None:
        lo = None if lo is None else min(lo, admitted)
        hi = None if hi is None else max(hi, admitted)
    limits = [f"min={lo}"] if lo else []
    limits += [] if hi is None else [f"max={hi}"]
    declared = symbol.declared
    if declared is not None and declared.isidentifier() and symbol.lo is not None:
        return f"Dim({', '.join([json.dumps(declared), *limits])})"
    hint = "Dim.AUTO" if declared is None else "Dim.DYNAMIC"
    return f"{hint}({', '.join(limits)})" if limits else hint


def _tree_text(spec: TreeSpec, parts: Iterator[str | None]) -> str | None:
    """Return what is said of a container, from what is said of its leaves; None if nothing is."""
    if spec.is_leaf():
        return next(parts)
    children = [_tree_text(child, parts) for child in spec.children()]
    if not any(children):
        return None
    if spec.type in (list, tuple):
        items = ", ".join(child or "None" for child in children)
        if spec.type is list:
            return f"[{items}]"
        return f"({items},)" if len(children) == 1 else f"({items})"
    said = zip(_labels(spec), children, strict=True)
    return f"{{{', '.join(f'{label}: {child}' for label, child in said if child)}}}"


def _labels(spec: TreeSpec) -> list[str]:
    """Return the keys by which a declaration names the parts of a container."""
    if spec.type in MAPPINGS:
        keys = mapping_keys(spec)
        return [json.dumps(key) if isinstance(key, str) else repr(key) for key in keys]
    steps = [step.removeprefix(".") for step in child_steps(spec)]
    return [json.dumps(s) if s.isidentifier() else str(i) for i, s in enumerate(steps)]
