"""Containers and leaves of the specification: registering, naming, sketching, refusing."""

from __future__ import annotations

import dataclasses
import enum
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils import _pytree

from lostwax.errors import InputTypeError, RegistrationError
from lostwax.ir.pytree import (
    call_paths,
    check_leaf,
    flatten_call,
    register_dataclass,
    registered_name,
    sketch_call,
)

Pair = namedtuple("Pair", "first second")
T = torch.zeros(2, 3)


@dataclasses.dataclass
class Batch:
    image: Any
    label: Any = None


@dataclasses.dataclass
class Other:
    value: Any


class Plain:
    pass


register_dataclass(Batch)


def test_a_registered_dataclass_is_taken_apart_and_put_together():
    leaves, spec = _pytree.tree_flatten(Batch(1, [2, 3]))
    assert leaves == [1, 2, 3]
    assert _pytree.tree_unflatten(leaves, spec) == Batch(1, [2, 3])


def test_fields_that_are_none_are_structure():
    leaves, spec = _pytree.tree_flatten(Batch(1))
    assert leaves == [1]
    assert _pytree.tree_unflatten([5], spec) == Batch(5, None)


def test_the_structure_of_a_dataclass_is_the_peers():
    @dataclasses.dataclass
    class Mine:
        a: Any
        b: Any

    @dataclasses.dataclass
    class Theirs:
        a: Any
        b: Any

    register_dataclass(Mine)
    torch.export.register_dataclass(Theirs)
    for values in [(1, 2), (None, 2), (1, None)]:
        mine, theirs = (
            _pytree.tree_structure(Mine(*values)),
            _pytree.tree_structure(Theirs(*values)),
        )
        assert mine.context == theirs.context
    assert registered_name(Mine) == f"{__name__}.{Mine.__qualname__}"
    assert registered_name(Theirs) is None


def test_registering_twice_is_harmless_under_another_name_it_is_not():
    register_dataclass(Other, serialized_type_name="my.Other")
    register_dataclass(Other)
    register_dataclass(Other, serialized_type_name="my.Other")
    with pytest.raises(RegistrationError, match=r"under the name 'my.Other'.*'your.Other'"):
        register_dataclass(Other, serialized_type_name="your.Other")


@pytest.mark.parametrize("cls", [Plain, 3, Batch(1)])
def test_only_dataclasses_are_registered_as_such(cls):
    with pytest.raises(RegistrationError, match="is not a dataclass"):
        register_dataclass(cls)


def test_where_leaves_stand_and_how_a_call_is_sketched():
    args = (T, [T, {"k": Pair(T, None)}], Batch(T), (1,), deque([2.5]))
    kwargs = {"od": OrderedDict(q=T), "dd": defaultdict(int, {0: "s"}), "d": {}}
    _, spec = flatten_call(args, kwargs)
    names = ["x", "y", "batch", "t", "q", "od", "dd", "d"]
    assert call_paths(spec, names) == [
        "x",
        "y[0]",
        "y[1]['k'].first",
        "y[1]['k'].second",
        "batch.image",
        "t[0]",
        "q[0]",
        "od['q']",
        "dd[0]",
    ]
    assert sketch_call(args, kwargs) == (
        "(f32[2, 3], [f32[2, 3], {'k': Pair(first=f32[2, 3], second=None)}], "
        "Batch(image=f32[2, 3]), (1,), deque(2.5), od=OrderedDict({'q': f32[2, 3]}), "
        "dd=defaultdict({0: 's'}), d={})"
    )


def test_arguments_without_names_are_numbered():
    _, spec = flatten_call((1, [2]), {"k": 3})
    assert call_paths(spec) == ["arg0", "arg1[0]", "k"]


def test_long_constants_are_cut_in_sketches():
    assert sketch_call(("x" * 1000,), {}).endswith("...)")
    assert len(sketch_call(("x" * 1000,), {})) < 80


LEAVES = [
    T,
    3,
    2.5,
    True,
    "text",
    torch.float32,
    torch.strided,
    torch.channels_last,
    torch.device("cpu"),
    None,
    1j,
]


@pytest.mark.parametrize("leaf", LEAVES, ids=str)
def test_leaves_of_the_specification(leaf):
    check_leaf(leaf, "x")


def test_another_object_is_refused_with_the_way_to_register_it():
    with pytest.raises(InputTypeError) as error:
        check_leaf(Plain(), "x['config']")
    assert error.value.path == "x['config']"
    assert error.value.args[0] == (
        f"x['config'] is of type {__name__}.Plain, which is neither a tensor, a constant nor a "
        "known container\n"
        "  fix: torch.utils._pytree.register_pytree_node(Plain, flatten, unflatten, "
        f"serialized_type_name='{__name__}.Plain'), or pass its tensors themselves"
    )


class Shade(enum.Enum):
    LIGHT = 1


@pytest.mark.parametrize(
    ("value", "fix"),
    [
        (np.ones(2), "torch.as_tensor(s)"),
        (np.float32(2), "s.item()"),
        ({1, 2}, "a list of it, list(s)"),
        (range(3), "a list of it, list(s)"),
        (Shade.LIGHT, "s.value, or bake it in: functools.partial(module, name=value)"),
        (slice(2), "leave it out, or bake it in: functools.partial(module, name=value)"),
        (torch.sin, "leave it out, or bake it in: functools.partial(module, name=value)"),
        (torch.nn.ReLU(), "leave it out, or bake it in: functools.partial(module, name=value)"),
    ],
)
def test_the_way_out_is_one_that_there_is(value: Any, fix: str):
    with pytest.raises(InputTypeError) as error:
        check_leaf(value, "s", "the input ")
    assert str(error.value).endswith(f"known container\n  fix: {fix}")
    with pytest.raises(InputTypeError) as error:
        check_leaf(value, "[1]", "the result")
    assert "partial" not in str(error.value)


def test_two_names_in_a_context_are_names():
    @dataclasses.dataclass
    class Output(OrderedDict):  # as transformers registers its own
        logits: Any = None
        cache: Any = None

    _pytree.register_pytree_node(
        Output, lambda o: ([o.logits, o.cache], ["logits", "cache"]), lambda c, _: Output(*c)
    )
    _, spec = flatten_call((Output(T, T),), {})
    assert call_paths(spec, ["x"]) == ["x.logits", "x.cache"]


def test_an_unregistered_dataclass_is_refused_and_the_fix_works():
    @dataclasses.dataclass
    class New:
        a: int

    with pytest.raises(InputTypeError, match=r"lostwax.register_dataclass\(.*New\)"):
        check_leaf(New(1), "x")
    register_dataclass(New)
    assert _pytree.tree_leaves(New(1)) == [1]
