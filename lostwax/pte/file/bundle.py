"""Bundled programs: a `.pte` file with calls of its methods, and what each is to return, in
ExecuTorch's form (`.bpte`). A file that is read is taken as hostile.

Must not run anything.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lostwax.errors import LoadError
from lostwax.pte.file.flat import Table, TableForm, write_table
from lostwax.pte.file.schema import DTYPES, MOST_DIMS, Fields
from lostwax.pte.file.tables import TableReader

IDENTIFIER = b"BP08"
_VERSION = 2

TABLES: dict[str, Fields] = {
    "BundledProgram": (
        ("version", "u32"),
        ("method_test_suites", "[Suite]"),
        ("program", "[u8]"),
    ),
    "Suite": (("method_name", "str"), ("test_cases", "[Case]")),
    "Case": (("inputs", "[Value]"), ("expected_outputs", "[Value]")),
    "Value": (("val", "|Tensor Int Bool Double"),),
    "Tensor": (
        ("scalar_type", "i8"),
        ("sizes", "[i32]"),
        ("data", "[u8]"),
        ("dim_order", "[u8]"),
    ),
    "Int": (("int_val", "i64"),),
    "Bool": (("bool_val", "bool"),),
    "Double": (("double_val", "f64"),),
}
_FORM = TableForm(TABLES, aligned={"data": 16, "program": 32})
_PLAIN: dict[type, tuple[str, str]] = {
    int: ("Int", "int_val"),
    bool: ("Bool", "bool_val"),
    float: ("Double", "double_val"),
}
_DTYPES = {number: dtype for dtype, number in DTYPES.items()}


@dataclass(frozen=True)
class BundledCase:
    """A call of a method: its inputs one by one, and what it is to return."""

    inputs: tuple[Any, ...]
    expected: tuple[Any, ...]


@dataclass(frozen=True)
class Bundle:
    """A bundled program: the `.pte` file, and for methods the calls to check it by."""

    program: bytes
    cases: Mapping[str, Sequence[BundledCase]]


def is_plain(value: Any) -> bool:
    """Can a bundle have this value?"""
    return type(value) in _PLAIN or (isinstance(value, torch.Tensor) and value.dtype in DTYPES)


def write_bundle(program: bytes, cases: Mapping[str, Sequence[BundledCase]]) -> bytes:
    """The file of a bundle."""
    suites = [
        Table("Suite", {"method_name": name, "test_cases": [_case(each) for each in cases[name]]})
        for name in sorted(cases)
    ]
    fields = {"version": _VERSION, "method_test_suites": suites, "program": program}
    return write_table(Table("BundledProgram", fields), IDENTIFIER, _FORM)


def _case(case: BundledCase) -> Table:
    inputs, expected = map(_value, case.inputs), map(_value, case.expected)
    return Table("Case", {"inputs": [*inputs], "expected_outputs": [*expected]})


def _value(value: Any) -> Table:
    if not isinstance(value, torch.Tensor):
        name, field = _PLAIN[type(value)]
        return Table("Value", {"val": Table(name, {field: value})})
    plain = value.detach().cpu()
    order = list(plain.dim_order()) if plain.dim() else []
    data: Any = plain.permute(order).contiguous().reshape(-1).view(torch.uint8).numpy()
    fields = {
        "scalar_type": DTYPES[plain.dtype],
        "sizes": list(plain.shape),
        "data": memoryview(data),
        "dim_order": order,
    }
    return Table("Value", {"val": Table("Tensor", fields)})


def read_bundle(source: str | os.PathLike[str] | bytes) -> Bundle:
    """Read the bundled program of `source`, a path or its bytes: the `.pte` file, and for methods
    calls with what they are to return."""
    if not isinstance(source, bytes):
        with open(source, "rb") as opened:
            source = opened.read()
    if source[4:8] != IDENTIFIER:
        raise LoadError(
            f"not a bundled program: its identifier is {source[4:8]!r}, not {IDENTIFIER!r}"
        )
    reader = TableReader(source, TABLES)
    root = reader.table(reader.number("u32", 0, "the bundle"), "BundledProgram", "the bundle", 0)
    if root["version"] > _VERSION:
        raise LoadError(f"a bundle of version {root['version']}; lostwax reads {_VERSION}")
    cases: dict[str, list[BundledCase]] = {}
    for suite in root["method_test_suites"] or ():
        listed = cases.setdefault(suite["method_name"] or "", [])
        for at, case in enumerate(suite["test_cases"] or ()):
            what = f"case {at} of {suite['method_name']!r}"
            inputs, outputs = case["inputs"] or (), case["expected_outputs"] or ()
            listed.append(
                BundledCase(
                    tuple(_read(each, f"input {i} of {what}") for i, each in enumerate(inputs)),
                    tuple(_read(each, f"result {i} of {what}") for i, each in enumerate(outputs)),
                )
            )
    return Bundle(bytes(root["program"] or b""), cases)


def _read(given: dict[str, Any], what: str) -> Any:
    value = given["val"]
    for kind, (name, field) in _PLAIN.items():
        if value[""] == name:
            return kind(value[field])
    dtype, sizes = _DTYPES.get(value["scalar_type"]), value["sizes"] or []
    order, data = list(value["dim_order"] or range(len(sizes))), value["data"] or b""
    if dtype is None or len(sizes) > MOST_DIMS or min(sizes, default=0) < 0:
        raise LoadError(f"the type of {what} is damaged")
    if sorted(order) != [*range(len(sizes))]:
        raise LoadError(f"the dim order of {what} is {order}")
    if math.prod(sizes) * dtype.itemsize != len(data):
        raise LoadError(f"{what} has {len(data):,} bytes, and a size of {sizes}")
    flat = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    back = sorted(range(len(order)), key=order.__getitem__)
    return flat.reshape([sizes[d] for d in order]).permute(back)
