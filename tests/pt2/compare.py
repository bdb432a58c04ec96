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


def assert_same(got: Any, want: Any) -> None:
    (ours, one), (theirs, other) = pytree.tree_flatten(got), pytree.tree_flatten(want)
    assert one == other
    for a, b in zip(ours, theirs, strict=True):
        assert type(a) is type(b)
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
        else:
            assert a == b


def called(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """What a module returns for copies of these arguments, and what it makes of them."""
    args, kwargs = deepcopy((args, kwargs or {}))
    torch.manual_seed(0)
    return module(*args, **kwargs), (args, kwargs)


def assert_runs_alike(ours: Any, theirs: Any, args: Any, kwargs: Any, times: int = 1) -> None:
    for _ in range(times):
        assert_same(called(ours, args, kwargs), called(theirs, args, kwargs))


def saved(program: Any, **options: Any) -> bytes:
    buffer = io.BytesIO()
    lostwax.save(program, buffer, **options)
    return buffer.getvalue()


def peer_load(data: bytes) -> Any:
    """As `torch.export.load`, which hides the reason when it fails. Runs torch's verifier."""
    logging.disable(logging.WARNING)  # one of its own messages does not format
    try:
        return load_pt2(io.BytesIO(data)).exported_programs["model"]
    finally:
        logging.disable(logging.NOTSET)


def assert_identical(a: lostwax.ExportedProgram, b: lostwax.ExportedProgram) -> None:
    """The same program: graph, names, metadata, constraints, signature, weights."""
    assert str(a) == str(b)
    assert [str(g) for g in a.guards] == [str(g) for g in b.guards]
    for m, n in zip(a.graph.nodes, b.graph.nodes, strict=True):
        assert (m.name, m.target if m.op != "output" else "") == (
            n.name,
            n.target if n.op != "output" else "",
        )
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack"):
            assert m.meta.get(key) == n.meta.get(key), (m, key)
    assert a.module_call_graph == b.module_call_graph
    assert a.dialect == b.dialect
    for one, other in ((a.state_dict, b.state_dict), (a.constants, b.constants)):
        assert list(one) == list(other)
        for name in one:
            assert_same(one[name].detach(), other[name].detach())
            assert type(one[name]) is type(other[name])
            assert one[name].requires_grad == other[name].requires_grad
            assert one[name].stride() == other[name].stride()
