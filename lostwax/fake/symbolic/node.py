"""Our node behind `torch.SymInt`, `torch.SymFloat` and `torch.SymBool`.

    wrap(expr) -> torch.SymInt      unwrap(symint) -> expr

torch's C++ calls the methods of a node by name: arithmetic, and questions of five kinds. A node
holds one value of `lostwax.sym`, which answers. Only C++ calls the arithmetic methods, so they mean
what C++ means; Python's operators bypass the nodes (`classes.py`). `has_hint` is never true: it
would make C++ branch on every size that might be 1.

Must not decide anything by itself, and must not import sympy: `face.py` does, when torch's
Python helpers ask.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

import torch

from lostwax.branches import asked_after, raises_otherwise
from lostwax.errors import MixedModeError
from lostwax.fake.symbolic import classes, layout
from lostwax.fake.symbolic.face import TorchShapeEnvAdapter, torch_shape_env
from lostwax.fake.symbolic.operations import BINARY, UNARY_REALS, have_same_truth, if_then_else
from lostwax.location import PASSING_ON, asking_frame
from lostwax.sym import (
    BoolExpr,
    Expr,
    ShapeEnv,
    Size,
    current,
    decide,
    decide_or,
    eq,
    expect,
    known,
    maximum,
    minimum,
    ne,
    negate,
    specialize,
)
from lostwax.sym.numbers.integers import indicator, power, remainder, truncdiv
from lostwax.sym.numbers.real import (
    Number,
    Real,
    compare,
    current_real,
    divide,
    real,
    specialize_real,
)

PASSING_ON.add(__file__)

_SymInt: Any = torch.SymInt
_SymFloat: Any = torch.SymFloat
_SymBool: Any = torch.SymBool
_no: Any = False.__bool__  # bound methods of constants: C++ calls them without a Python frame
_yes: Any = True.__bool__


def wrap(value: Any) -> Any:
    """What the user sees: `Expr` → `torch.SymInt`, `BoolExpr` → `torch.SymBool`, `Real` →
    `torch.SymFloat`, the same object each time. Plain values stay as they are."""
    kind = type(value)
    if kind is Expr or kind is BoolExpr or kind is Real:
        face = value.face
        return _new_face(value) if face is None else face
    return value


def unwrap(value: Any) -> Any:
    """The inverse of `wrap`, under today's facts: a size that has become constant is an int."""
    kind = type(value)
    if kind is _SymInt:
        node = value.node
        if node.__class__ is IntNode:
            return current(node.value)
    elif kind is _SymBool or kind is _SymFloat:
        node = value.node
        if node.__class__ is BoolNode:
            return node.value
        if node.__class__ is FloatNode:
            return current_real(node.value) if node.value.__class__ is Real else node.value
    return value


def install() -> None:
    """Put our operators on torch's classes, before the first node is made; foreign nodes keep
    torch's."""
    classes.install(wrap, IntNode, FloatNode, BoolNode)


def _new_face(value: Expr | BoolExpr | Real) -> Any:
    install()
    face: Any
    if isinstance(value, Expr):
        face = _SymInt(IntNode(value.env, value))
    elif isinstance(value, BoolExpr):
        face = _SymBool(BoolNode(value.env, value))
    else:
        face = _SymFloat(FloatNode(value.env, value))
    value.face = face
    return face


def _node(env: ShapeEnv, value: Any) -> Node:
    """The node of a value; one per expression."""
    kind = type(value)
    if kind is Expr or kind is BoolExpr or kind is Real:
        return wrap(value).node  # type: ignore[no-any-return]
    if kind is int:
        return IntNode(env, value)
    return BoolNode(env, value) if kind is bool else FloatNode(env, value)


def _find_deferred(env: ShapeEnv, asking: FrameType) -> list[Any]:
    """The earlier parts of the condition that Python asks for, which have no guard yet."""
    return [e for e in env.deferred if e[0] is asking.f_code and asking.f_lasti in e[1]]


def decide_deferred(env: ShapeEnv, asking: FrameType) -> None:
    """Decide the earlier parts of a condition before data are asserted: the assertion holds only
    where these are as in the example."""
    for _, _, value in _find_deferred(env, asking):
        decide(value)


def _ask_before_hint(value: Any) -> None:
    """A number is to be known, and the hint is about to say which."""
    asks = isinstance(value, Expr) and value.env.before_hint is not None
    if asks and value.hint is not None and isinstance(current(value), Expr):
        value.env.before_hint(asking_frame(), value)


def _asked_by(file: str, line: int) -> str:
    return f"{file.rpartition('/')[2]}:{line}" if file else ""


def _binary(function: Callable[[Any, Any], Any]) -> Callable[[Node, Node], Node]:
    def method(self: Node, other: Node) -> Node:
        return _node(self.env, function(self.value, other.value))

    return method


def _unary(function: Callable[[Any], Any]) -> Callable[[Node], Node]:
    def method(self: Node) -> Node:
        return _node(self.env, function(self.value))

    return method


def _layout(question: layout.Layout) -> Callable[[Node, list[Node], list[Node]], Node]:
    def method(self: Node, sizes: list[Node], strides: list[Node]) -> Node:
        answer = question([n.value for n in sizes], [n.value for n in strides])
        return _node(self.env, answer)

    return method


class Node:
    """What nodes of all three kinds have in common."""

    __slots__ = ("env", "sympy", "value")

    is_int = is_float = is_bool = is_nested_int = has_hint = _no
    is_symbolic = _yes

    def __init__(self, env: ShapeEnv, value: Any) -> None:
        self.env = env
        self.value = value
        self.sympy: Any = None

    def clone(self) -> Node:
        return self

    def wrap_int(self, n: int) -> Node:
        return IntNode(self.env, n)

    def wrap_bool(self, b: bool) -> Node:
        return BoolNode(self.env, b)

    def wrap_float(self, x: float) -> Node:
        return FloatNode(self.env, x)

    def is_constant(self) -> bool:
        return isinstance(self.value, (int, float))

    def maybe_as_int(self) -> int | None:
        return None

    def str(self) -> str:
        return str(self.value)

    def __str__(self) -> str:  # type: ignore[valid-type]
        return str(self.value)

    _graph_repr = __repr__ = __str__

    @property
    def hint(self) -> Any:
        return getattr(self.value, "hint", self.value)

    _hint = hint

    @property
    def shape_env(self) -> TorchShapeEnvAdapter:
        return torch_shape_env(self.env)

    @property
    def expr(self) -> Any:
        """The value as a sympy expression."""
        return torch_shape_env(self.env).sympy_of(self)

    def __copy__(self) -> Node:
        return self

    def __deepcopy__(self, memo: object) -> Node:
        return self

    def _value_hash(self) -> NoReturn:
        """Torch's own fake mode asks, which keeps results by the sizes of their operands."""
        raise MixedModeError(
            f"the symbolic size {self} is lostwax's, and a fake tensor mode of torch's met it\n"
            "  instead: lostwax.FakeTensorProp(graph_module).propagate(*fakes); torch's own takes "
            'program.module(), in the mode of its placeholders\' meta["val"]'
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"the symbolic size {self} cannot be pickled: it means something in its ShapeEnv only. "
            "Save its value, `int(size)`, or its text, `str(size)`"
        )


class IntNode(Node):
    """Behind a `torch.SymInt`: `int | Expr`."""

    __slots__ = ()
    value: Size

    is_int = _yes

    def maybe_as_int(self) -> int | None:
        """C++ calls this for each size of each new tensor."""
        e = self.value
        if isinstance(e, int):
            return e
        now = e.current if e.current_at == e.env.facts.version else e.env.current_form(e)
        return now.const

    def is_constant(self) -> bool:
        return current(self.value).__class__ is int

    def guard_int(self, file: str, line: int) -> int:
        _ask_before_hint(self.value)
        return specialize(self.value, asked_by=_asked_by(file, line))

    def int_(self) -> int:
        _ask_before_hint(self.value)
        return specialize(self.value)

    def guard_float(self, file: str, line: int) -> float:
        return float(self.guard_int(file, line))

    def bool_(self) -> bool:
        return BoolNode(self.env, ne(self.value, 0)).bool_()

    add = _binary(operator.add)
    sub = _binary(operator.sub)
    mul = _binary(operator.mul)
    # C++ divides towards zero, even in what it calls floor division.
    floordiv = int_floordiv = _binary(truncdiv)
    mod = _binary(remainder)
    truediv = int_truediv = float_truediv = _binary(divide)
    pow = float_pow = _binary(BINARY["pow"])
    sym_min = _binary(minimum)
    sym_max = _binary(maximum)
    eq = _binary(eq)
    ne = _binary(ne)
    lt = _binary(operator.lt)
    le = _binary(operator.le)
    gt = _binary(operator.gt)
    ge = _binary(operator.ge)
    neg = _unary(operator.neg)
    sym_float = _unary(real)

    def pow_by_natural(self, other: Node) -> Node:
        return _node(self.env, power(self.value, specialize(other.value)))

    def floor(self) -> Node:
        return self

    ceil = floor

    def sym_sum(self, nodes: Sequence[Node]) -> Node:
        return _node(self.env, sum(n.value for n in nodes))

    is_contiguous = _layout(layout.is_contiguous)
    is_channels_last_contiguous_2d = _layout(layout.is_channels_last(4))
    is_channels_last_contiguous_3d = _layout(layout.is_channels_last(5))
    is_channels_last_strides_2d = _layout(layout.has_channels_last_strides(4))
    is_channels_last_strides_3d = _layout(layout.has_channels_last_strides(5))
    is_non_overlapping_and_dense = _layout(layout.is_non_overlapping_and_dense)


class BoolNode(Node):
    """Behind a `torch.SymBool`: `bool | BoolExpr`."""

    __slots__ = ()
    value: bool | BoolExpr

    is_bool = _yes

    def guard_bool(self, file: str, line: int) -> bool:
        """C++ or torch's Python branches on it."""
        certain = known(self.value)
        if certain is None and self.value is self.env.passed_over:
            self.env.passed_over = certain = False
        return certain if certain is not None else decide(self.value, _asked_by(file, line))

    def bool_(self) -> bool:
        """Python branches on it."""
        value = self.value
        if isinstance(value, bool):
            return value
        if value.env.known(value) is not None:
            return decide(value)
        asking = asking_frame()
        if value.hint is None:
            decide_deferred(value.env, asking)
        elif value.env.before_hint is not None and not raises_otherwise(asking, value.hint):
            value.env.before_hint(asking, value)
        elif later := asked_after(asking, value.hint):
            earlier = _find_deferred(value.env, asking)
            value.env.deferred = [*earlier, (asking.f_code, later, value)]
            return value.hint
        return value.env.decide(value, or_raises=lambda answer: raises_otherwise(asking, answer))

    def guard_or_false(self, file: str, line: int) -> bool:
        certain = known(self.value)
        return (
            certain if certain is not None else decide_or(self.value, False, _asked_by(file, line))
        )

    def guard_or_true(self, file: str, line: int) -> bool:
        certain = known(self.value)
        return (
            certain if certain is not None else decide_or(self.value, True, _asked_by(file, line))
        )

    guard_size_oblivious = guard_or_false

    def expect_true(self, file: str, line: int) -> bool:
        """A requirement: False makes the caller raise its own error."""
        certain = known(self.value)
        return certain if certain is not None else expect(self.value, _asked_by(file, line))

    def statically_known_true(self, file: str, line: int) -> bool:
        return known(self.value) is True

    sym_and = _binary(operator.and_)
    sym_or = _binary(operator.or_)
    sym_not = _unary(negate)
    eq = _binary(have_same_truth)

    def ne(self, other: Node) -> Node:
        return _node(self.env, negate(have_same_truth(self.value, other.value)))

    def sym_ite(self, yes: Node, no: Node) -> Node:
        return _node(self.env, if_then_else(self.value, yes.value, no.value))

    def sym_float(self) -> Node:
        return _node(self.env, real(indicator(self.value)))

    def guard_int(self, file: str, line: int) -> int:
        return int(self.guard_bool(file, line))


class FloatNode(Node):
    """Behind a `torch.SymFloat`: `float | Real`."""

    __slots__ = ()
    value: Number

    is_float = _yes

    def guard_float(self, file: str, line: int) -> float:
        return specialize_real(self.value)

    def bool_(self) -> bool:
        return decide(compare("!=", self.value, 0.0))

    add = _binary(BINARY["add"])
    sub = _binary(BINARY["sub"])
    mul = _binary(BINARY["mul"])
    mod = _binary(BINARY["mod"])
    floordiv = int_floordiv = _binary(BINARY["floordiv"])
    truediv = int_truediv = float_truediv = _binary(BINARY["truediv"])
    pow = float_pow = pow_by_natural = _binary(BINARY["pow"])
    sym_min = _binary(BINARY["sym_min"])
    sym_max = _binary(BINARY["sym_max"])
    eq = _binary(BINARY["eq"])
    ne = _binary(BINARY["ne"])
    lt = _binary(BINARY["lt"])
    le = _binary(BINARY["le"])
    gt = _binary(BINARY["gt"])
    ge = _binary(BINARY["ge"])
    neg = _unary(operator.neg)
    floor = _unary(UNARY_REALS["floor"])
    ceil = _unary(UNARY_REALS["ceil"])

    def sym_float(self) -> Node:
        return self
