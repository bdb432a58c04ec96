"""Two programs, ours or torch's, give the same: values bit for bit, structure, writes to inputs."""

from __future__ import annotations

import io
import logging
from copy import deepcopy
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch.export.pt2_archive._package import load_pt2

import lostwax
from lostwax.ir.graph.lookup import all_nodes


def assert_same(got: Any, want: Any) -> None:
    (ours, one), (theirs, other) = pytree.tree_flatten(got), pytree.tree_flatten(want)
    assert one == other
    for a, b in zip(ours, theirs, strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        else:
            assert a == b or (a != a and b != b)  # nan


def called(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """What a module returns for copies of these arguments, and what it makes of them."""
    args, kwargs = deepcopy((args, kwargs or {}))
    torch.manual_seed(0)
    return module(*args, **kwargs), (args, kwargs)


def assert_runs_alike(ours: Any, theirs: Any, args: Any, kwargs: Any, times: int = 1) -> None:
    for _ in range(times):
        assert_same(called(ours, args, kwargs), called(theirs, args, kwargs))


def saved(program: Any, metadata: Any = "full", **options: Any) -> bytes:
    """A file with all that there is to say of the program."""
    buffer = io.BytesIO()
    lostwax.save(program, buffer, metadata=metadata, **options)
    return buffer.getvalue()


def peer_load(data: bytes) -> Any:
    """As `torch.export.load`, which hides the reason when it fails. Runs torch's verifier."""
    logging.disable(logging.WARNING)  # one of its own messages does not format
    try:
        return load_pt2(io.BytesIO(data)).exported_programs["model"]
    finally:
        logging.disable(logging.NOTSET)


def assert_identical(a: lostwax.ExportedProgram, b: lostwax.ExportedProgram) -> None:
    """The same program: what `diff` compares, and what it does not: metadata, order, layouts."""
    assert str(lostwax.diff(a, b)) == "no differences"
    assert str(a) == str(b)
    assert [_guard(g) for g in a.guards] == [_guard(g) for g in b.guards]
    assert a.graph_signature == b.graph_signature
    assert a.module_call_graph == b.module_call_graph
    for m, n in zip(all_nodes(a.graph_module), all_nodes(b.graph_module), strict=True):
        assert (m.op, m.name, str(m.target)) == (n.op, n.name, str(n.target))
        assert pytree.tree_map(str, (m.args, m.kwargs)) == pytree.tree_map(str, (n.args, n.kwargs))
        assert described(m.meta.get("val")) == described(n.meta.get("val")), m
        assert _rest(m.meta) == _rest(n.meta), m
    for one, other in ((a.state_dict, b.state_dict), (a.constants, b.constants)):
        assert list(one) == list(other)
        for name in one:
            assert type(one[name]) is type(other[name])
            assert one[name].stride() == other[name].stride()


def described(value: Any) -> Any:
    """All that is recorded of a value."""
    if isinstance(value, (tuple, list)):
        return type(value), [described(v) for v in value]
    if isinstance(value, lostwax.FakeTensor):
        t = value.fake_type
        numbers = [str(s) for s in (*t.size, *t.stride, t.offset)]
        return numbers, t.dtype, t.device, t.layout, value.requires_grad
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return type(value), str(value), value.node.hint
    return type(value), value


def _rest(meta: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in meta.items() if key != "val" and value}


def _guard(guard: Any) -> tuple[Any, ...]:
    where = guard.where
    place = where.file, where.line, where.function, where.text
    return str(guard.cond), guard.kind, guard.asked_by, guard.reason, *place
