"""Binding a call to what was captured: every structure, every leaf, and the text of each error."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils import _pytree

from lostwax.errors import InputStructureError, InputValueError
from lostwax.fake import FakeTensorMode
from lostwax.fake.symbolic.node import wrap
from lostwax.ir.pytree import flatten_call, register_dataclass
from lostwax.ir.run.calling import Convention
from lostwax.ir.signature import same_constant
from lostwax.sym import ShapeEnv, eq

Pair = namedtuple("Pair", "first second")
Swapped = namedtuple("Swapped", "first second")
T = torch.zeros(2, 3)


@dataclasses.dataclass
class Batch:
    image: Any
    label: Any = None


class Bag:
    """A class that only its registration knows."""

    def __init__(self, items: list[Any], tag: str = "") -> None:
        self.items, self.tag = items, tag

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bag) and (self.items, self.tag) == (other.items, other.tag)


register_dataclass(Batch)
_pytree.register_pytree_node(
    Bag, lambda bag: (bag.items, bag.tag), lambda items, tag: Bag(list(items), tag)
)


def convention(*args: Any, names: list[str] | None = None, **kwargs: Any) -> Convention:
    leaves, spec = flatten_call(args, kwargs)
    return Convention(spec, spec, leaves, names)


# -------------------------------------------------------------------------------------- structures

VALUES = [
    T,
    (T, 1),
    (T,),
    (),
    [T, [T, []]],
    {"a": T, "b": {"c": 1}},
    {},
    {0: T, (1, 2): T, None: 3},
    Pair(T, None),
    OrderedDict(b=T, a=1),
    defaultdict(list, {"k": T}),
    deque([T, 2]),
    torch.Size([2, 3]),
    Batch(T),
    Batch(T, [1, 2]),
    Bag([T, Bag([1], "inner")], "outer"),
    [Pair({"x": Batch((T, T))}, Bag([])), None],
]


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_structure_is_taken_apart_as_pytree_does_and_put_together(value):
    c = convention(value, k=value)
    leaves = c.bind((value,), {"k": value})
    expected = _pytree.tree_leaves(((value,), {"k": value}))
    assert len(leaves) == len(expected)
    assert all(a is b or a == b for a, b in zip(leaves, expected, strict=True))
    (again,), kwargs = c.rebuild(leaves)
    assert type(again) is type(value)
    for whole in (again, kwargs["k"]):
        assert _pytree.tree_structure(whole) == _pytree.tree_structure(value)


@pytest.mark.parametrize("other", VALUES, ids=range(len(VALUES)))
@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_every_other_structure_is_refused(value, other):
    c = convention(value, names=["x"])
    if _pytree.tree_structure(value) == _pytree.tree_structure(other):
        c.bind((other,), {})
    else:
        with pytest.raises((InputStructureError, InputValueError)) as error:
            c.bind((other,), {})
        assert error.value.path.startswith("x")
        assert error.value.__context__ is None
        assert error.value.__cause__ is None


def test_keys_of_a_dict_may_come_in_any_order():
    c = convention({"a": 1, "b": 2}, names=["x"], k=3, m=defaultdict(list, p=4, q=5))
    call = {"m": defaultdict(list, q=5, p=4), "k": 3}
    assert c.bind(({"b": 2, "a": 1},), call) == (1, 2, 3, 4, 5)


def test_the_order_of_an_ordered_dict_is_a_part_of_it():
    """As in torch.export: a module that goes through it would compute something else."""
    c = convention(OrderedDict(p=4, q=5), names=["x"])
    assert c.bind((OrderedDict(p=4, q=5),), {}) == (4, 5)
    with pytest.raises(InputStructureError, match="x has its keys in another order than at capt"):
        c.bind((OrderedDict(q=5, p=4),), {})


def test_positional_arguments_may_be_given_by_name():
    c = convention(1, 2, names=["x", "y"], k=3)
    assert c.bind((1,), {"k": 3, "y": 2}) == (1, 2, 3)
    assert c.bind((), {"k": 3, "y": 2, "x": 1}) == (1, 2, 3)


def test_the_signature_is_the_originals():
    assert str(convention(1, 2, names=["x", "y"], k=3).signature) == "(x, y, *, k)"
    assert str(convention(1, **{"not a name": 2}).signature) == "(*args, **kwargs)"
    assert convention(**{"not a name": 2}).bind((), {"not a name": 2}) == (2,)


def test_nothing_at_all():
    c = convention()
    assert c.bind((), {}) == ()
    with pytest.raises(InputStructureError, match="1 positional arguments were given"):
        c.bind((1,), {})


MORE = "leave it out, or capture it again with it"
OTHER = "pass the structure that was captured, or capture it again with this one"
STRUCTURE_ERRORS = [
    (
        (),
        {"mask": {"a": T}},
        "x",
        "x is missing",
        "pass it, x=(f32[2, 3], 1); or capture it again without",
    ),
    (
        ((T, 1),),
        {},
        "mask",
        "mask is missing",
        "pass it, mask={'a': f32[2, 3]}; or capture it again without",
    ),
    (((T, 1),), {"mask": {"a": T}, "z": 1}, "z", "z is not an argument of the program", MORE),
    (
        ((T, 1),),
        {"Mask": {"a": T}},
        "Mask",
        "Mask is not an argument of the program (did you mean 'mask'?)",
        MORE,
    ),
    (
        ((T, 1),),
        {"mask": {"a": T}, "x": 1},
        "x",
        "x was given twice",
        "pass x once, by position or by name",
    ),
    (
        ((T, 1), T),
        {},
        "args[1]",
        "2 positional arguments were given, the program takes 1",
        "pass mask by name, as at capture",
    ),
    (
        ((T, 1), T, 3),
        {},
        "args[1]",
        "3 positional arguments were given, the program takes 2",
        "leave out what is too much, or capture it again with it",
    ),
    (([T, 1],), {"mask": {"a": T}}, "x", "x is a list, not a tuple", OTHER),
    ((T,), {"mask": {"a": T}}, "x", "x is a Tensor, not a tuple", OTHER),
    (((T, 1),), {"mask": None}, "mask", "mask is None, not a dict", OTHER),
    (((T, 1, 2),), {"mask": {"a": T}}, "x", "x has 3 elements, not 2", OTHER),
    (((T, 1),), {"mask": {}}, "mask['a']", "mask['a'] is missing", OTHER),
    (((T, 1),), {"mask": {"b": T}}, "mask['a']", "mask['a'] is missing", OTHER),
    (((T, 1),), {"mask": {"A": T}}, "mask['a']", "mask['a'] is missing (is it 'A'?)", OTHER),
    (
        ((T, 1),),
        {"mask": {"a": T, "b": T}},
        "mask['b']",
        "mask['b'] was not there at capture",
        OTHER,
    ),
    ((([T], 1),), {"mask": {"a": T}}, "x[0]", "x[0] is a list, not a single value", OTHER),
]


@pytest.mark.parametrize(("args", "kwargs", "path", "text", "way"), STRUCTURE_ERRORS)
def test_a_wrong_structure_is_shown_beside_the_right_one(args, kwargs, path, text, way):
    c = convention((T, 1), names=["x"], mask={"a": T})
    with pytest.raises(InputStructureError) as error:
        c.bind(args, kwargs)
    first, captured, called, fix = error.value.args[0].split("\n")
    assert first == text
    assert fix == f"  fix: {way}"
    assert error.value.path == path
    assert captured == "  captured with: ((f32[2, 3], 1), mask={'a': f32[2, 3]})"
    assert called.startswith("  called with:   (")


def test_other_contexts_of_custom_classes_are_told():
    c = convention(Batch(T), names=["x"])
    with pytest.raises(InputStructureError, match=r"x has 2 elements, not 1: \[\['image', 'label'"):
        c.bind((Batch(T, T),), {})
    c = convention(Bag([T], "red"), names=["x"])
    with pytest.raises(InputStructureError, match="x is another kind of Bag: 'blue', at capture"):
        c.bind((Bag([T], "blue"),), {})
    with pytest.raises(InputStructureError, match="x is a Swapped, not a Pair"):
        convention(Pair(1, 2), names=["x"]).bind((Swapped(1, 2),), {})


# ------------------------------------------------------------------------------------------- leaves

CONSTANTS: list[Any] = [
    None,
    3,
    -3,
    0,
    True,
    False,
    1.5,
    0.0,
    -0.0,
    float("nan"),
    float("inf"),
    1j,
    "text",
    "",
    torch.float32,
    torch.float64,
    torch.strided,
    torch.sparse_coo,
    torch.channels_last,
    torch.device("cpu"),
    torch.device("meta"),
]


def test_who_passes_a_tensor_for_a_constant_is_not_told_to_pass_one():
    with pytest.raises(InputValueError) as error:
        convention(None, names=["mask"]).bind((T,), {})
    assert error.value.args[0] == (
        "mask is a tensor f32[2, 3], but the program was captured with None, which is baked into "
        "it\n  fix: call it with that value, or capture it again with the other one"
    )


@pytest.mark.parametrize("given_value", CONSTANTS, ids=repr)
@pytest.mark.parametrize("baked", CONSTANTS, ids=repr)
def test_a_constant_is_only_itself(baked, given_value):
    c = convention(baked, names=["n"])
    if repr(baked) == repr(given_value):
        assert c.bind((given_value,), {}) == (given_value,) or given_value != given_value
    else:
        with pytest.raises(InputValueError, match="baked into it"):
            c.bind((given_value,), {})


def test_the_text_of_another_constant():
    c = convention(2, names=["n"])
    with pytest.raises(InputValueError) as error:
        c.bind((3,), {})
    assert error.value.path == "n"
    assert error.value.args[0] == (
        "n is the int 3, but the program was captured with the int 2, which is baked into it\n"
        "  fix: call it with that value, or capture it again, for all values, with "
        'dynamic_shapes={"n": Dim.DYNAMIC}'
    )
    with pytest.raises(InputValueError) as error:
        c.bind((3.0,), {})
    assert error.value.args[0].splitlines()[1] == (
        "  fix: call it with that value, capture it again with the other one, or pass a tensor"
    )
    with pytest.raises(InputValueError, match=r"n is the bool True, but .* the int 1, which"):
        convention(1, names=["n"]).bind((True,), {})
    with pytest.raises(InputValueError, match=r"n is None, but .* with the int 2, which"):
        c.bind((None,), {})
    with pytest.raises(InputValueError, match=r"n is a tensor f32\[2, 3\], but .* the int 2"):
        c.bind((T,), {})
    with pytest.raises(InputValueError, match=r"n is the str 'a', but .* with None, which"):
        convention(None, names=["n"]).bind(("a",), {})


TENSOR_ERRORS = [
    (
        torch.zeros(2, 4),
        "x['a'].shape[1] is 4, but the program was captured for 3\n"
        "  x['a']: expected f32[2, 3], given f32[2, 4]\n"
        '  fix: capture it again, for all sizes, with dynamic_shapes={"x": {"a": {1: Dim("n")}}}, '
        "or for this one",
    ),
    (
        torch.zeros(2, 3, 1),
        "x['a'] has 3 dimensions, but the program was captured for 2 dimensions\n"
        "  x['a']: expected f32[2, 3], given f32[2, 3, 1]\n"
        "  fix: pass a tensor of 2 dimensions, or capture it again with such an input",
    ),
    (
        torch.zeros(2, 3, dtype=torch.int64),
        "x['a'] is of torch.int64, but the program was captured for torch.float32\n"
        "  x['a']: expected f32[2, 3], given i64[2, 3]\n"
        "  fix: pass x['a'].to(torch.float32), or capture it again with such an input",
    ),
    (
        torch.zeros(2, 3, device="meta"),
        "x['a'] is on meta, but the program was captured for cpu\n"
        "  x['a']: expected f32[2, 3], given f32[2, 3]\n"
        "  fix: pass x['a'].to('cpu'), or move the module, .to('meta')",
    ),
    (
        torch.zeros(2, 3).to_sparse(),
        "x['a'] is of torch.sparse_coo, but the program was captured for a dense tensor\n"
        "  fix: pass x['a'].to_dense()",
    ),
    (
        2.5,
        "x['a'] is the float 2.5, but the program was captured with a tensor f32[2, 3]\n"
        "  fix: pass a tensor, or capture it again with this",
    ),
    (
        None,
        "x['a'] is None, but the program was captured with a tensor f32[2, 3]\n"
        "  fix: pass a tensor, or capture it again with this",
    ),
]


@pytest.mark.parametrize(("value", "text"), TENSOR_ERRORS)
def test_a_wrong_tensor_is_named_with_its_place(value, text):
    c = convention({"a": T}, names=["x"])
    with pytest.raises(InputValueError) as error:
        c.bind(({"a": value},), {})
    assert error.value.args[0] == text
    assert error.value.path == "x['a']"
    assert error.value.__context__ is None


def test_numpy_arrays_are_not_tensors():
    with pytest.raises(InputValueError, match=r"x is the ndarray(?s:.)* torch\.as_tensor\(x\)"):
        convention(T, names=["x"]).bind((T.numpy(),), {})


def test_subclasses_of_tensor_are_tensors():
    c = convention(T, names=["x"])
    parameter = torch.nn.Parameter(T)
    assert c.bind((parameter,), {}) == (parameter,)


# ------------------------------------------------------------------------------------ dynamic sizes


def dynamic(*sizes: Any, ranges: Any = None, guards: Any = ()) -> Convention:
    """x, y, ... of these sizes; ints that are symbolic are arguments themselves."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    values = [
        mode.from_tensor(
            torch.zeros([s if isinstance(s, int) else s.hint for s in size]),
            sizes=tuple(wrap(s) for s in size),
        )
        if isinstance(size, tuple)
        else wrap(size)
        for size in sizes
    ]
    spec = _pytree.tree_structure((tuple(range(len(values))), {}))
    out = _pytree.tree_structure(0)
    return Convention(spec, out, values, list("xyz")[: len(values)], ranges, guards)


def zeros(*size: int) -> torch.Tensor:
    return torch.zeros(size)


def test_a_dynamic_size_takes_every_value_the_same_everywhere():
    s = ShapeEnv().symbol(hint=4)
    c = dynamic((s, 3), (2, s))
    for n in (0, 1, 5):
        c.bind((zeros(n, 3), zeros(2, n)), {})
    with pytest.raises(InputValueError) as error:
        c.bind((zeros(5, 3), zeros(2, 6)), {})
    assert error.value.args[0] == (
        "y.shape[1] is 6, but must be x.shape[0] = 5, since x.shape[0] is 5\n"
        "  fix: pass what was declared; or capture it again with "
        'dynamic_shapes={"x": {0: Dim.AUTO}, "y": {1: Dim("n")}}'
    )
    with pytest.raises(InputValueError, match=r"x.shape\[1\] is 4, but .* for 3\n.*f32\[s0, 3\]"):
        c.bind((zeros(5, 4), zeros(2, 5)), {})
    with pytest.raises(InputValueError, match="x has 1 dimensions"):
        c.bind((zeros(5), zeros(2, 5)), {})


def test_sizes_that_depend_on_others():
    s = ShapeEnv().symbol(hint=4)
    c = dynamic((s,), (2 * s + 1,))
    c.bind((zeros(3), zeros(7)), {})
    with pytest.raises(InputValueError) as error:
        c.bind((zeros(3), zeros(8)), {})
    assert error.value.args[0] == (
        "y.shape[0] is 8, but must be 2*x.shape[0] + 1 = 7, since x.shape[0] is 3\n"
        "  fix: pass what was declared; or capture it again with "
        'dynamic_shapes={"x": {0: Dim.AUTO}, "y": {0: Dim("n")}}'
    )


def test_a_symbol_that_stands_nowhere_alone_is_solved_for():
    s = ShapeEnv().symbol(hint=4)
    c = dynamic((3 * s + 1,), (s + 1,))
    c.bind((zeros(7), zeros(3)), {})
    c = dynamic((3 * s + 1,))
    c.bind((zeros(10),), {})
    with pytest.raises(InputValueError, match=r"x.shape\[0\] is 8, but must be 3\*s0 \+ 1"):
        c.bind((zeros(8),), {})


def test_ranges_are_checked():
    s = ShapeEnv().symbol(hint=4)
    c = dynamic((s,), ranges={"s0": (2, 8)})
    c.bind((zeros(2),), {})
    c.bind((zeros(8),), {})
    for n in (1, 9):
        with pytest.raises(InputValueError) as error:
            c.bind((zeros(n),), {})
        told = f"x.shape[0] is {n}, but the program holds for 2 <= x.shape[0] <= 8"
        assert error.value.args[0] == told


def test_guards_are_checked_and_told_with_their_line():
    env = ShapeEnv()
    s = env.symbol(hint=4)
    env.assume(eq(s % 2, 0), "branch")
    c = dynamic((s, 3), guards=env.guards)
    c.bind((zeros(6, 3),), {})
    with pytest.raises(InputValueError) as error:
        c.bind((zeros(5, 3),), {})
    text = error.value.args[0]
    assert "captured under the condition x.shape[0] % 2 == 0, and here x.shape[0] = 5" in text
    assert "the trace follows the example" in text
    assert "test_calling.py" in text


def test_an_int_can_be_dynamic():
    env = ShapeEnv()
    s = env.symbol(hint=4)
    c = dynamic((s,), s)
    assert c.bind((zeros(5), 5), {})[1] == 5
    with pytest.raises(InputValueError, match=r"y is 6, but must be x.shape\[0\] = 5"):
        c.bind((zeros(5), 6), {})
    for wrong in (5.0, True, None, zeros(1)):
        with pytest.raises(InputValueError, match=r"y is .*, but .* captured with an int"):
            c.bind((zeros(5), wrong), {})


def test_symbolic_sizes_pass_the_checks_and_leave_guards():
    """As when a program is captured again."""
    c = convention(T, names=["x"])
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    fake = mode.from_tensor(T, sizes=(wrap(env.symbol(hint=2)), 3))
    assert c.bind((fake,), {}) == (fake,)
    assert [g.predicate for g in env.guards] == ["s0 == 2"]


# ---------------------------------------------------------------- the fast way against the slow one

trees = st.recursive(
    st.one_of(st.none(), st.integers(0, 2), st.booleans(), st.sampled_from(["a", "b"])),
    lambda t: st.one_of(
        st.lists(t, max_size=2),
        st.lists(t, max_size=2).map(tuple),
        st.dictionaries(st.sampled_from("ab"), t, max_size=2),
        st.tuples(t, t).map(lambda p: Pair(*p)),
        t.map(Batch),
    ),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None)
@given(trees, trees)
def test_what_is_accepted_is_what_is_equal(captured, called):
    c = convention(captured, names=["x"])
    if _same_tree(captured, called):
        assert c.bind((called,), {}) == tuple(flatten_call((captured,), {})[0])
    else:
        with pytest.raises((InputStructureError, InputValueError)):
            c.bind((called,), {})


def _same_tree(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same_tree(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same_tree, a, b))
    return _same_tree(a.image, b.image) if isinstance(a, Batch) else same_constant(a, b)
