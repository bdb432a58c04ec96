"""Numpy arrays as values of the runtime, and back. Inputs are not copied, unless their memory is
laid out otherwise than the method reads it; results are copies, which the caller owns."""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy

from lostwax_run.description import DTYPES, Spec
from lostwax_run.errors import InputError, RunError
from lostwax_run.runtime import BOOL, FLOAT, INT, MOST_DIMS, NONE, TENSOR, TEXT, Value

Put = Callable[[Any], Any]
"""Puts an input into its row; returns what must live until the method has run."""

_NUMBERS = {name: number for number, name in DTYPES.items()}
_ARRAYS = {
    number: numpy.dtype("uint16" if name == "bfloat16" else name) for number, name in DTYPES.items()
}
_PLAIN = {
    "int": (INT, int),
    "bool": (BOOL, bool),
    "float": (FLOAT, float),
    "none": (NONE, type(None)),
}


def prepare_input(spec: Spec, row: Any, what: str) -> Put:
    """How the inputs of one place are put into its row."""
    if spec.kind != "tensor":
        return _prepare_plain(spec, row, what)
    number = _NUMBERS.get(spec.dtype)
    dims = range(len(spec.shape))
    if number is None or len(dims) > MOST_DIMS or sorted(spec.order) != [*dims]:
        raise RunError(f"{what} is {spec}, which numpy has no arrays for")
    dtype, shape, varies, is_plain = _ARRAYS[number], spec.shape, spec.varies, spec.is_contiguous
    row.kind, row.dtype, row.dims = TENSOR, number, len(shape)
    row.sizes[: len(shape)], row.order[: len(shape)] = shape, spec.order

    count = len(shape)

    def put(value: Any) -> Any:  # each line counts: it is done in every call
        if type(value) is not numpy.ndarray or value.dtype != dtype or value.ndim != count:
            value = _fit(value, spec, dtype, what)
        fits = value.shape == shape or (varies and all(map(operator.le, value.shape, shape)))
        if not fits:
            _fit(value, spec, dtype, what)  # it says why
        if varies:
            row.sizes[:count] = value.shape
        if value.flags.num & _AS_READ != _AS_READ or not is_plain:
            value = numpy.require(value.transpose(spec.order), requirements=["C", "A"])
        held = value.__array_struct__  # `value.ctypes.data` takes ten times as long
        row.array = _open_capsule(held, None)
        return held

    return put


_AS_READ = 0x0001 | 0x0100
"""numpy's flags for arrays that are contiguous and aligned."""
_open_capsule = ctypes.PyDLL(None).PyCapsule_GetPointer
_open_capsule.restype = ctypes.c_void_p
_open_capsule.argtypes = (ctypes.py_object, ctypes.c_char_p)


def _fit(value: Any, spec: Spec, dtype: Any, what: str) -> Any:
    """A value that is an array of the right dtype and shape, or an error that says why not."""
    if not isinstance(value, (numpy.ndarray, numpy.generic)):
        raise InputError(
            f"{what} is {_name_type(value)}; the method takes an array, {spec}\n"
            f"  instead: numpy.asarray(value, dtype={dtype.name!r})"
        )
    array = numpy.asarray(value)
    if array.dtype.name == spec.dtype == "bfloat16":  # of the package ml_dtypes
        array = array.view(dtype)
    if array.dtype != dtype:
        bits = ", as the bits of numbers" if spec.dtype == "bfloat16" else ""
        raise InputError(
            f"{what} is {_name_array(array)}; the method takes {spec}\n"
            f"  instead: value.astype({dtype.name!r}){bits}"
        )
    if array.ndim != len(spec.shape):
        raise InputError(
            f"{what} is {_name_array(array)}; the method takes {spec}\n"
            f"  why: it has {array.ndim} dims, not {len(spec.shape)}"
        )
    for dim, (size, limit) in enumerate(zip(array.shape, spec.shape, strict=True)):
        if size > limit or (size != limit and not spec.varies):
            wanted = f"at most {limit}" if spec.varies else str(limit)
            raise InputError(
                f"{what} is {_name_array(array)}; the method takes {spec}\n"
                f"  why: dim {dim} has {size} elements, and there are to be {wanted}"
            )
    return array


def _prepare_plain(spec: Spec, row: Any, what: str) -> Put:
    if spec.kind not in _PLAIN:
        raise RunError(f"{what} is a {spec}, which cannot be given")
    kind, wanted = _PLAIN[spec.kind]

    def put(value: Any) -> None:
        if type(value) is not wanted and not (wanted is float and type(value) is int):
            raise InputError(f"{what} is {_name_type(value)}; the method takes {spec}")
        row.kind = kind
        if kind == FLOAT:
            row.real = value
        elif value is not None:
            row.number = value

    return put


def prepare_result(spec: Spec, row: Any) -> Callable[[], Any]:
    """How the value of a row is taken, with memory of its own."""
    number, dims = _NUMBERS.get(spec.dtype, -1), len(spec.shape)
    if number < 0 or not spec.is_contiguous:
        return partial(_take_any, row)
    dtype, varies, fixed = _ARRAYS[number], spec.varies, list(spec.shape)
    ndarray, see, itemsize, prod = numpy.ndarray, _Memory.from_address, dtype.itemsize, math.prod

    def take() -> Any:
        shape, size = row.sizes[:dims] if varies else fixed, row.bytes
        if row.kind != TENSOR or row.dtype != number or not size or prod(shape) * itemsize != size:
            return _take_any(row)
        return ndarray(shape, dtype, see(row.data)).copy()

    return take


_Memory: Any = ctypes.c_char * (1 << 62)
"""All memory from some address: of how much of it is read, sizes decide that were compared."""


def _take_any(row: Any) -> Any:
    kind = row.kind
    if kind == TENSOR:
        return _take_array(row)
    if kind == TEXT:
        return ctypes.string_at(row.data, row.bytes).decode(errors="replace")
    if kind in (INT, BOOL):
        return row.number if kind == INT else bool(row.number)
    if kind in (FLOAT, NONE):
        return row.real if kind == FLOAT else None
    raise RunError("a result is neither a tensor nor a number, a text or None")


def _take_array(row: Any) -> Any:
    dtype, dims = _ARRAYS.get(row.dtype), row.dims
    if dtype is None:
        raise RunError(f"a result is of the dtype {row.dtype}, which numpy has not")
    shape, order = row.sizes[:dims], row.order[:dims]
    placed = [shape[dim] for dim in order]
    if math.prod(shape) * dtype.itemsize != row.bytes:
        raise RunError(f"a result has {row.bytes} bytes, and the sizes {shape}")
    if not row.bytes:
        return numpy.empty(shape, dtype)
    array = numpy.ndarray(placed, dtype, _Memory.from_address(row.data)).copy()
    if order == _PLAIN_ORDERS[dims]:
        return array
    return array.transpose([order.index(dim) for dim in range(dims)])


_PLAIN_ORDERS = [list(range(dims)) for dims in range(MOST_DIMS + 1)]


def make_rows(count: int) -> Any:
    return (Value * max(count, 1))()


def _name_array(array: Any) -> str:
    return f"{array.dtype.name}[{', '.join(map(str, array.shape))}]"


def _name_type(value: Any) -> str:
    return "None" if value is None else f"of the type {type(value).__name__}"
