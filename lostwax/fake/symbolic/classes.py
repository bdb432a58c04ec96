"""Our operators on `torch.SymInt`, `torch.SymFloat` and `torch.SymBool`, and `torch._check` without
sympy.

C++ always hands back plain objects of torch's classes around our nodes, so the operators must be
methods of these classes. Each new method looks at the class of the node: it serves our nodes, and
calls the former method for all others. Must not change the meaning of a foreign node.
"""

from __future__ import annotations

import numbers
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from types import FrameType
from typing import Any

import torch

from lostwax.classes import SHOWN, SYMBOLIC
from lostwax.errors import CaptureError
from lostwax.fake.symbolic.operations import (
    BINARY,
    COMPARISONS,
    OF_CONDITIONS,
    UNARY_REALS,
    UNARY_SIZES,
    BinaryOperator,
    if_then_else,
    reflect,
    to_number,
)
from lostwax.location import PASSING_ON
from lostwax.sym import Expr, expect, negate

PASSING_ON.add(__file__)
_SymInt, _SymFloat, _SymBool = SYMBOLIC
_installed = False

# torch has several names for one operator, according to the kinds of its operands.
_ALIASES = {
    "floordiv": ("floordiv", "int_floordiv"),
    "truediv": ("truediv", "int_truediv", "float_truediv"),
    "pow": ("pow", "pow_by_natural", "float_pow"),
}
_NOT_REFLECTED = COMPARISONS | {"sym_max", "sym_min"}
_BITS = frozenset(("lshift", "rshift", "and", "or", "xor"))


def install(wrap: Callable[[Any], Any], int_node: Any, float_node: Any, bool_node: Any) -> None:
    """Put our operators on torch's classes, once."""
    global _installed
    if _installed:
        return
    _installed = True
    patch = _ClassPatch(wrap, (int_node, float_node, bool_node))
    for name, operator in BINARY.items():
        for alias in _ALIASES.get(name, (name,)):
            put = patch.binary_of_symint if name != "divmod" else patch.binary
            put(_SymInt, f"__{alias}__", int_node, operator)
            if name not in _NOT_REFLECTED:
                put(_SymInt, f"__r{alias}__", int_node, reflect(operator))
            for cls, node in ((_SymFloat, float_node), (_SymBool, bool_node)):
                if cls is _SymFloat and name in _BITS:
                    continue
                function = OF_CONDITIONS.get(name, operator) if cls is _SymBool else operator
                patch.binary(cls, f"__{alias}__", node, function)
                if name not in _NOT_REFLECTED:
                    back = function if name in OF_CONDITIONS else reflect(operator)
                    patch.binary(cls, f"__r{alias}__", node, back)
    for name, function in UNARY_SIZES.items():
        patch.unary(_SymInt, f"__{name}__", int_node, function)
        patch.unary(_SymBool, f"__{name}__", bool_node, _of_condition(function))
    for name, function in UNARY_REALS.items():
        method = name if name == "is_integer" else f"__{name}__"
        patch.unary(_SymFloat, method, float_node, function)
    _install_conditions(patch, bool_node)
    for kind, node in zip(SYMBOLIC, patch.nodes, strict=True):
        _install_text(kind, node, SHOWN[kind])
        _install_attributes(kind, node, SHOWN[kind])
        _install_numpy(kind, patch.nodes)
    _install_hash(int_node)
    _install_checks(int_node, bool_node)
    from lostwax.fake.symbolic import shown_class

    shown_class.install((int_node, float_node, bool_node))


class _ClassPatch:
    """Puts methods on torch's classes that serve our nodes and leave all others to the former
    method."""

    def __init__(self, wrap: Callable[[Any], Any], nodes: tuple[Any, ...]) -> None:
        self.wrap = wrap
        self.nodes = nodes

    def binary_of_symint(self, cls: Any, name: str, ours: Any, function: BinaryOperator) -> None:
        """As `binary`, with a short cut for two integers: the hottest code of symbolic tracing."""
        before = getattr(cls, name, _refuse_operand)
        wrap, on_sizes, apply_mixed = self.wrap, function.on_sizes, self.apply_mixed

        def method(self: Any, other: Any) -> Any:
            node = self.node
            if node.__class__ is not ours:
                return before(self, other)
            kind = type(other)
            if kind is int:
                result = on_sizes(node.value, other)
            elif kind is _SymInt and other.node.__class__ is ours:
                result = on_sizes(node.value, other.node.value)
            else:
                return apply_mixed(function, node.value, other)
            if result.__class__ is Expr and result.face is not None:
                return result.face  # `wrap`, without a call
            return wrap(result)

        self.put(cls, name, method)

    def binary(self, cls: Any, name: str, ours: Any, function: Callable[[Any, Any], Any]) -> None:
        before = getattr(cls, name, _refuse_operand)
        apply_mixed = self.apply_mixed

        def method(self: Any, other: Any) -> Any:
            node = self.node
            if node.__class__ is not ours:
                return before(self, other)
            return apply_mixed(function, node.value, other)

        self.put(cls, name, method)

    def unary(self, cls: type, name: str, ours: Any, function: Callable[..., Any]) -> None:
        before = getattr(cls, name, None)
        wrap = self.wrap

        def method(self: Any, *args: Any) -> Any:
            node = self.node
            if node.__class__ is ours:
                return wrap(function(node.value, *args))
            if before is None:
                raise TypeError(f"{name} is not defined for {type(self).__name__}")
            return before(self, *args)

        self.put(cls, name, method)

    def apply_mixed(self, function: Callable[[Any, Any], Any], value: Any, other: Any) -> Any:
        """Apply `function` to our value and to whatever the user wrote."""
        number = self.operand(other)
        if number is NotImplemented:
            return NotImplemented
        result = function(value, number)
        return tuple(map(self.wrap, result)) if isinstance(result, tuple) else self.wrap(result)

    def operand(self, other: Any) -> Any:
        """The value of any number; NotImplemented for anything else, so that a tensor gets its
        turn."""
        if isinstance(other, SYMBOLIC):
            if other.node.__class__ in self.nodes:
                return other.node.value
            raise TypeError(
                f"{other} belongs to another symbolic engine and cannot be mixed with lostwax's"
            )
        if isinstance(other, (bool, float)):
            return other
        if isinstance(other, numbers.Integral):
            return int(other)
        if isinstance(other, numbers.Number) and not hasattr(other, "__array__"):
            raise CaptureError.here(
                f"a number that depends on data or on a size meets a {type(other).__name__}",
                why="a program computes with integers, floats and truths alone; Python would take "
                "the two to differ",
                instead="convert the other one, int(...) or float(...)",
            )
        return NotImplemented

    @staticmethod
    def put(cls: type, name: str, method: Callable[..., Any]) -> None:
        method.__name__ = name
        method.__qualname__ = f"{cls.__name__}.{name}"
        setattr(cls, name, method)


def _refuse_operand(self: Any, other: Any) -> Any:
    """The former method, where the class had none."""
    return NotImplemented


def _of_condition(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda condition, *args: function(to_number(condition), *args)


def _install_conditions(patch: _ClassPatch, ours: Any) -> None:
    patch.unary(_SymBool, "__sym_not__", ours, negate)
    patch.unary(
        _SymBool,
        "__sym_ite__",
        ours,
        lambda b, yes, no: if_then_else(b, patch.operand(yes), patch.operand(no)),
    )
    for name, plain in (("__index__", int), ("__float__", float)):
        patch.put(_SymBool, name, _make_reading(name, ours, plain))


def _make_reading(name: str, ours: Any, plain: type) -> Callable[[Any], Any]:
    """C reads a condition as a number: which it is decides."""

    def read(self: Any) -> Any:
        if self.node.__class__ is not ours:
            raise TypeError(f"{type(self).__name__} has no {name}")
        return plain(self.node.bool_())

    return read


def is_text_read(frame: FrameType) -> bool:
    """Does a text that this frame makes now decide what the user's program does?"""
    from lostwax.fake.symbolic.texts import decides

    if decides(frame):
        return True
    next(TEXTS)
    return False


TEXTS = count()
"""Counts the texts that show what is not known."""


def _install_text(cls: Any, ours: Any, plain: type) -> None:
    """f"{n}" gives the text "s0". f"{n:03d}" needs digits and specialises, as `int(n)` does, and so
    does a text that decides something: a key, a name, one that is compared."""
    before, shown = cls.__format__, cls.__repr__

    def format_number(self: Any, spec: str) -> str:
        if self.node.__class__ is ours and (spec or is_text_read(sys._getframe(1))):
            return format(plain(self), spec)
        return before(self, spec)  # type: ignore[no-any-return]

    def show_number(self: Any) -> str:
        if self.node.__class__ is ours and is_text_read(sys._getframe(1)):
            return repr(plain(self))
        return shown(self)  # type: ignore[no-any-return]

    _ClassPatch.put(cls, "__format__", format_number)
    _ClassPatch.put(cls, "__repr__", show_number)


_NO_TORCH_FUNCTION = "a number has no attribute '__torch_function__'"


class MethodOfNumber:
    """`n.bit_length`, of a number that is not known. To call it asks for the number, as `int(n)`
    does."""

    __slots__ = ("__name__", "__self__", "plain")

    def __init__(self, number: Any, name: str, plain: type) -> None:
        self.__self__, self.__name__, self.plain = number, name, plain

    def __call__(self, *args: Any, **options: Any) -> Any:
        return getattr(self.plain(self.__self__), self.__name__)(*args, **options)


def _install_attributes(cls: Any, ours: Any, plain: type) -> None:
    """What a number has beside operators: `n.real`, `n.bit_count()`."""

    def get_attribute(self: Any, name: str) -> Any:
        if name == "__torch_function__":  # C++ asks for it with every size of a tensor
            raise AttributeError(_NO_TORCH_FUNCTION)
        is_ours = name != "node" and self.node.__class__ is ours
        if not is_ours or name.startswith("__") or not hasattr(plain, name):
            shown = plain if is_ours else cls
            raise AttributeError(f"{shown.__name__!r} object has no attribute {name!r}")
        if name in ("real", "numerator"):
            return +self
        of_any = plain(1)
        is_method = callable(getattr(of_any, name))
        return MethodOfNumber(self, name, plain) if is_method else getattr(of_any, name)

    _ClassPatch.put(cls, "__getattr__", get_attribute)


def _install_numpy(cls: Any, nodes: tuple[Any, ...]) -> None:
    """Functions of numpy's. What Python's operators compute is one more such number, `np.int64(2) *
    n`; others read it as a plain one, as `int(n)` does."""

    def compute(self: Any, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        import numpy as np

        def read(number: Any) -> Any:
            is_ours = isinstance(number, SYMBOLIC) and number.node.__class__ in nodes
            return SHOWN[type(number)](number) if is_ours else number

        def show(number: Any) -> Any:
            return np.asarray(number, dtype=object) if isinstance(number, SYMBOLIC) else number

        call = getattr(ufunc, method)
        if self.node.__class__ not in nodes:
            return call(*map(show, inputs), **options)
        # Numbers of other classes round, and truths are added otherwise, than Python's.
        kinds = {each.dtype.char for each in inputs if isinstance(each, (np.ndarray, np.generic))}
        is_alike = kinds <= {*"lqd?O"} and not any(isinstance(each, _SymBool) for each in inputs)
        if is_alike and (ufunc.nin == 2 or ufunc.__name__ in _OPERATORS):
            with suppress(TypeError, AttributeError):  # it is no operator of Python's
                result = call(*map(show, inputs), **options)
                makes_float = ufunc.nin == 1 and isinstance(call(SHOWN[type(self)](1)), np.floating)
                return torch.sym_float(result) if makes_float else result
        return call(*map(read, inputs), **options)

    _ClassPatch.put(cls, "__array_ufunc__", compute)


_OPERATORS = frozenset(("floor", "ceil", "trunc", "absolute", "negative", "positive"))
"""Python has these, too, for one number; but that some make integers there, and floats here."""


def _install_hash(ours: Any) -> None:
    """The hash is that of the example's number, with a guard: a key of a dict is one number."""
    before: Any = _SymInt.__hash__

    def hash_number(self: Any) -> int:
        return hash(int(self)) if self.node.__class__ is ours else before(self)

    _ClassPatch.put(_SymInt, "__hash__", hash_number)


# ------------------------------------------------------------------------------------- torch._check


def _install_checks(int_node: Any, bool_node: Any) -> None:
    """Replace torch's checks, which import symbolic_shapes and sympy at the first call (2 s)."""
    check_with: Any = torch._check_with
    check_is_size: Any = torch._check_is_size

    def _check_with(error_type: type[Exception], cond: Any, message: Any = None) -> None:
        if type(cond) is _SymBool and cond.node.__class__ is bool_node:
            holds = _expect(cond.node.env, cond.node.value, message, error_type)
        elif cond is True or cond is False:
            holds = cond
        else:
            check_with(error_type, cond, message)
            return
        if not holds:
            raise error_type(_message(cond, message))

    def _check_is_size(i: Any, message: Any = None, *, max: Any = None) -> None:
        if type(i) is not _SymInt or i.node.__class__ is not int_node:
            check_is_size(i, message, max=max)
            return
        _check_with(RuntimeError, i >= 0, message)
        if max is not None:
            _check_with(RuntimeError, i <= max, message)

    torch._check_with = _check_with
    torch._check_is_size = _check_is_size


def _expect(env: Any, condition: Any, message: Any, kind: type[Exception]) -> bool:
    """Require the condition; the message of the check explains the guard."""
    before = len(env.guards)
    holds = expect(condition, "torch._check", (kind,))
    if callable(message) and len(env.guards) > before:
        text = ""
        with suppress(Exception), env.trial():  # the message may ask for the digits of a size
            text = str(message())
        env.explain(text)
    return holds


def _message(cond: Any, message: Any) -> str:
    if message is None:
        found = "False" if cond is False else f"`{cond}`, which is False for the example"
        return f"Expected cond to be True, but got {found}"
    if not callable(message):
        raise TypeError("message must be a callable")
    return str(message())
