"""Damaged and hostile archives, made from good ones: bytes changed at random, and JSON changed at
random inside an archive that is whole.
"""

from __future__ import annotations

import copy
import io
import json
import random
import zipfile
from collections.abc import Callable
from typing import Any

HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 99, 1 << 31, -(1 << 31), 1 << 62, 1 << 63, 1 << 200, 0.5,
    1e308, "", "x", "Infinity", "NaN", "../../etc/passwd", "__import__('os').system('true')",
    "Symbol('s0', integer=True)", "Pow(Integer(9), Pow(Integer(9), Integer(9)))", "lambda: 0",
    "torch.ops.aten.add.Tensor", "torch.ops.aten.relu.default", "torch.ops.import_module.x.y",
    "torch.ops.higher_order.cond", "os.system", "builtins.eval", "_operator.getitem", "class",
    "self", "torch", "x); import os; (", "a" * 5000, [], {}, [[]], [None], {"as_int": 4},
    {"as_int": -4}, {"as_name": "x"}, {"name": "x"}, {"as_none": True},
    {"as_tensor": {"name": "x"}}, {"as_ints": [1, 2]}, {"as_string": "x"}, {"as_float": "NaN"},
    {"as_expr": {"expr_str": "1/0", "hint": None}},
    {"as_expr": {"expr_str": "Mod(Integer(1), Integer(0))", "hint": None}},
    {"as_expr": {"expr_str": "(" * 500, "hint": {"as_int": 1}}},
    {"as_expr": {"expr_str": "Symbol('u0', integer=True)", "hint": None}},
    {"as_operator": "torch.ops.aten.add.Tensor"}, {"as_scalar_type": 7}, {"as_device": {"type": 1}},
]  # fmt: skip


def records(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(parts: dict[str, bytes], **options: Any) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", **options) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return buffer.getvalue()


# -------------------------------------------------------------------------------------------- bytes


def _flip(data: bytearray, rng: random.Random) -> bytearray:
    for _ in range(rng.choice((1, 1, 2, 8, 64))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def _cut(data: bytearray, rng: random.Random) -> bytearray:
    return data[: rng.randrange(len(data))]


def _fill(data: bytearray, rng: random.Random) -> bytearray:
    start, count = rng.randrange(len(data)), rng.randrange(1, 200)
    data[start : start + count] = bytes([rng.choice((0, 255, 80))]) * count
    return data


def _copy(data: bytearray, rng: random.Random) -> bytearray:
    a, b, count = rng.randrange(len(data)), rng.randrange(len(data)), rng.randrange(1, 300)
    data[b : b + rng.choice((0, count))] = data[a : a + count]
    return data


def _tail(data: bytearray, rng: random.Random) -> bytearray:
    """Near the end: the directory."""
    for _ in range(rng.choice((1, 2, 4))):
        data[-rng.randint(1, min(len(data), 2500))] = rng.choice((0, 1, 80, 127, 255))
    return data


BYTES: list[Callable[[bytearray, random.Random], bytearray]] = [_flip, _cut, _fill, _copy, _tail]


# --------------------------------------------------------------------------------------------- JSON


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Every (container, key) in a tree of JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, child in items:
        found.append((value, key))
        if isinstance(child, (dict, list)):
            _places(child, found)
    return found


def _change(tree: Any, rng: random.Random) -> None:
    places = _places(tree, [])
    if not places:
        return
    owner, key = rng.choice(places)
    action = rng.randrange(6)
    if action == 0:
        del owner[key]
    elif action == 1:
        other, other_key = rng.choice(places)
        owner[key] = copy.deepcopy(other[other_key])
    elif action == 2 and isinstance(owner, dict):
        owner[rng.choice(("as_int", "as_name", "name", "x", str(key) + "_"))] = owner.pop(key)
    elif action == 3 and isinstance(owner, list):
        owner.insert(key, copy.deepcopy(owner[key]))
    elif action == 4 and isinstance(owner[key], str):
        text = owner[key]
        at = rng.randrange(len(text) + 1)
        owner[key] = text[:at] + rng.choice(("(", ")", "'", ";", ",", "0", "\0", " ")) + text[at:]
    else:
        owner[key] = copy.deepcopy(rng.choice(HOSTILE))


def _json(parts: dict[str, bytes], rng: random.Random) -> dict[str, bytes]:
    names = [n for n in parts if n.endswith(".json")]
    name = rng.choice([n for n in names if "/models/" in n] * 3 + names)
    tree = json.loads(parts[name])
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        _change(tree, rng)
    return {**parts, name: json.dumps(tree).encode()}


def mutant(data: bytes, seed: int) -> bytes:
    """The archive with one thing wrong, chosen by the seed."""
    rng = random.Random(seed)
    if seed % 3 == 0:
        return bytes(rng.choice(BYTES)(bytearray(data), rng))
    parts = _json(records(data), rng)
    if seed % 20 == 1:  # inside a record of bytes, in an archive that is whole
        name = rng.choice([n for n in parts if not n.endswith(".json") and parts[n]])
        parts[name] = bytes(rng.choice(BYTES)(bytearray(parts[name]), rng))
    return packed(parts)
