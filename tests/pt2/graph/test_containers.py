"""Arguments and results that torch's format has no words for: its own tuples, named tuples that
nobody has registered, dtypes and devices. Our files give them back, and torch reads the rest."""

from __future__ import annotations

import collections
import io
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import lostwax
from lostwax import Dim, export
from lostwax.errors import InputValueError, LoadError
from lostwax.interop import to_torch

Pair = collections.namedtuple("Pair", "first second")


class Point(NamedTuple):
    x: Tensor
    y: Tensor

    class Inner(NamedTuple):
        z: Tensor


X = torch.tensor([[3.0, 1.0, -2.0], [0.5, 4.0, 1.0], [1.0, 1.0, 9.0]])


def saved(program: lostwax.ExportedProgram, text: str) -> io.BytesIO:
    file = io.BytesIO()
    with pytest.warns(UserWarning, match=text):
        lostwax.save(program, file)
    file.seek(0)
    return file


def kinds(value: Any) -> Any:
    """The classes of all containers in a result."""
    if isinstance(value, dict):
        return {key: kinds(each) for key, each in value.items()}
    is_container = isinstance(value, (tuple, list))
    return type(value), [kinds(each) for each in value] if is_container else []


RESULTS: dict[str, Callable[..., Any]] = {
    "linalg_slogdet": torch.linalg.slogdet,
    "frexp": torch.frexp,
    "cummax": lambda x: torch.cummax(x, 0),
    "max": lambda x: {"best": x.max(1), "all": [x.sort(), (x.min(0), x)]},
    "linalg_eigh": lambda x: torch.linalg.eigh(x @ x.T),
    "topk": lambda x: [x.topk(2), x.kthvalue(1)],
    "Pair": lambda x: Pair(x + 1, x * 2),
    "Inner": lambda x: Point(x, Point.Inner(x.median(0))),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", RESULTS)
def test_tuples_with_names_as_results(name: str) -> None:
    forward = RESULTS[name]
    program = export(forward, (X,), strict=name == "max")
    want = forward(X)
    file = saved(program, rf"torch's format has no words[\s\S]*{name} is a tuple")
    ours = lostwax.load(file)
    assert ours.example_inputs is not None
    got = ours.module()(X)
    assert kinds(got) == kinds(want)
    torch.testing.assert_close(got, want)
    file.seek(0)
    for theirs in (torch.export.load(file), to_torch(program)):
        plain = theirs.module()(X)
        leaves = [torch.utils._pytree.tree_leaves(each) for each in (plain, want)]
        torch.testing.assert_close(*leaves)


def test_named_tuples_as_arguments() -> None:
    def forward(pair: Pair, *, point: Point) -> Tensor:
        return pair.first * pair.second + point.x - point.y

    args, kwargs = (Pair(X, X + 1),), {"point": Point(X.sin(), X.cos())}
    sizes = {"pair": [{0: Dim("n")}] * 2, "point": [{0: Dim("n")}] * 2}
    program = export(forward, args, kwargs, dynamic_shapes=sizes)
    file = saved(program, "Pair is a tuple")
    ours = lostwax.load(file)
    torch.testing.assert_close(ours.module()(*args, **kwargs), forward(*args, **kwargs))
    assert isinstance(ours.example_inputs[0][0], Pair)
    file.seek(0)
    theirs = torch.export.load(file).module()
    got = theirs(tuple(args[0]), point=tuple(kwargs["point"]))
    torch.testing.assert_close(got, forward(*args, **kwargs))


def test_a_named_tuple_that_is_not_there_is_made_by_its_fields() -> None:
    Gone = collections.namedtuple("Gone", "a b")
    file = saved(export(lambda x: Gone(x, x + 1), (X,)), "Gone is a tuple")
    found = lostwax.load(file).module()(X)
    assert type(found).__name__ == "Gone"
    torch.testing.assert_close(found.b, X + 1)


CONSTANTS = [
    (lambda x, d: x.to(d), torch.float64, torch.int32),
    (lambda x, d: x.to(d), torch.device("cpu"), torch.device("meta")),
    (lambda x, d: torch.ones_like(x, layout=d) + x, torch.strided, torch.sparse_coo),
    (lambda x, d: x.clone(memory_format=d), torch.contiguous_format, torch.preserve_format),
    (lambda x, d: x * d, 2 + 1j, 1j),
]


@pytest.mark.parametrize(("forward", "value", "other"), CONSTANTS)
def test_constants_of_torch_as_arguments(forward: Any, value: Any, other: Any) -> None:
    program = export(forward, (X, value))
    file = saved(program, r"the argument 1, .*, is None")
    loaded = lostwax.load(file)
    assert loaded.example_inputs[0][1] == value
    for ours in (loaded.module(), program.module()):
        torch.testing.assert_close(ours(X, value), forward(X, value))
        with pytest.raises(InputValueError):
            ours(X, other)
    file.seek(0)
    theirs = torch.export.load(file).module()
    torch.testing.assert_close(theirs(X, None), forward(X, value))


def test_constants_of_torch_as_results() -> None:
    program = export(lambda x: {"y": x + 1, "kind": (x.dtype, x.device)}, (X,))
    file = saved(program, r"the result 1, torch.float32, is None")
    got = lostwax.load(file).module()(X)
    assert got["kind"] == (torch.float32, torch.device("cpu"))
    file.seek(0)
    assert torch.export.load(file).module()(X)["kind"] == (None, None)


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("return_types.max", "return_types.gone", "this torch has no tuple 'torch.return_types.go"),
        ("return_types.max", "return_types.svd", "no tuple 'torch.return_types.svd' of 2 elements"),
        ("return_types.max", "return_types.__class__", "this torch has no tuple"),
    ],
)
def test_damaged_names(old: str, new: str, text: str) -> None:
    from lostwax.pt2.graph.treespec import tree_of, tree_text

    program = export(lambda x: x.max(0), (X,))
    written = tree_text(program.call_spec.out_spec)
    assert tree_of(written) == program.call_spec.out_spec
    with pytest.raises(LoadError, match=text):
        tree_of(written.replace(old, new))
