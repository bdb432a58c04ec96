"""Numbers that programs compute, in files: long chains are shared, floats come back as they were,
and what torch's reader does not know is said.
"""

from __future__ import annotations

import io
import json
import math
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
import torch

import lostwax
from lostwax import torch_version
from lostwax.errors import LoadError, SaveError
from tests.pt2.compare import assert_identical, peer_load, saved
from tests.whole import sampled

AUTO = lostwax.Dim.AUTO
CHAINS: dict[str, Callable[[Any], Any]] = {
    "n//2": lambda n: n // 2,
    "ceil(n/2)": lambda n: math.ceil(n / 2),
    "n//2 + n%2": lambda n: n // 2 + n % 2,
    "n//2 + n//3": lambda n: n // 2 + n // 3,
    "min(n, 7)//2 + n": lambda n: torch.sym_min(n, 7) // 2 + n,
    "max(n//2 + 1, n%5)": lambda n: torch.sym_max(n // 2 + 1, n % 5),
    "n*n//(n + 1) + 1": lambda n: n * n // (n + 1) + 1,
}


def chained(step: Callable[[Any], Any], count: int) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        n, found = x.shape[0], []
        for _ in range(count):
            n = step(n)
            found.append(x.new_zeros(2) + n)
        return found

    return run


def program_json(data: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return archive.read("archive/models/model.json")


@pytest.mark.parametrize("name", CHAINS)
def test_chains_are_shared(name: str) -> None:
    """The file grows with the number of operations, and loads; torch, for which sympy takes ten
    seconds to read six `max` of each other, reads a short one."""
    x, lengths = torch.randn(1000, 2), []
    for count in (3, 6, 12):
        run = chained(CHAINS[name], count)
        program = lostwax.export(run, (x,), dynamic_shapes=({0: AUTO},))
        data = saved(program, example_inputs=False)
        lengths.append(len(program_json(data)))
        again = lostwax.load(io.BytesIO(data))
        assert str(again) == str(program)
        for size in (1000, 517):
            given = torch.randn(size, 2)
            torch.testing.assert_close(again.module()(given), run(given))
        if count == 3:
            torch.testing.assert_close(peer_load(data).module()(x), run(x))
    assert lengths[2] < 4 * lengths[1]


def test_conditions_on_long_chains_are_checked() -> None:
    """The code that checks a call has the shared parts once."""

    def run(x: Any, y: Any) -> Any:
        n = x.shape[0]
        for _ in range(25):
            n = n - n // 4
        return y + x[: n + 2].sum() if n + y.shape[0] > 3 else y

    args, shapes = (torch.randn(2000, 2), torch.randn(5)), ({0: AUTO}, {0: AUTO})
    program = lostwax.export(run, args, dynamic_shapes=shapes)
    for each in (program, lostwax.load(io.BytesIO(saved(program)))):
        module = each.module()
        for rows in (2000, 1999, 300):
            given = (torch.randn(rows, 2), torch.randn(5))
            torch.testing.assert_close(module(*given), run(*given))
        with pytest.raises(ValueError, match="captured under the condition"):
            module(torch.randn(1, 2), torch.randn(1))
    assert len(str(program)) < 100_000


def test_what_cannot_be_written_is_said_before() -> None:
    def run(x: Any) -> Any:
        n = x.shape[0]
        for _ in range(6):
            n = n * n
        return x + n % 7

    program = lostwax.export(run, (torch.randn(2, 2),), dynamic_shapes=({0: AUTO},))
    with pytest.raises(SaveError, match="a polynomial of degree 64"):
        saved(program)


@pytest.mark.parametrize(
    "defined",
    [
        [["e0", "Symbol('s0', integer=True)"]] * 2,
        [["s0", "Integer(1)"]],
        [["e0", "Equality(Symbol('s0', integer=True), Integer(1))"]],
        [[1, "Integer(1)"]],
        [["e0", "Symbol('s0', integer=True)"]]
        + [[f"e{i + 1}", f"Add(Symbol('e{i}'), Symbol('e{i}'))"] for i in range(3000)],
        [["e0", "FloorDiv(Symbol('s0', integer=True), Integer(2))"]]
        + [
            [f"e{i + 1}", f"FloorDiv(Add(Symbol('e{i}'), Symbol('s0'), Integer(1)), Integer(2))"]
            for i in range(600)
        ],
    ],
    ids=["twice", "a symbol", "a truth", "no name", "doubled", "deep"],
)
def test_hostile_definitions(defined: Any) -> None:
    program = lostwax.export(
        lambda x: x + x.shape[0], (torch.randn(4),), dynamic_shapes=({0: AUTO},)
    )
    data = saved(program)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as given, zipfile.ZipFile(out, "w") as made:
        for name in given.namelist():
            content = given.read(name)
            if name.endswith("models/model.json"):
                tree = json.loads(content)
                tree["lostwax"]["defined"] = defined
                content = json.dumps(tree).encode()
            made.writestr(name, content)
    with pytest.raises(LoadError):
        lostwax.load(io.BytesIO(out.getvalue()))


# i, j are of data, and so are the floats f, g; n, m are sizes
READ_BY_TORCH = """
    n*m | n//m | n%3 | n**2 | n/3 | n*0.1 - m*0.3 | -(n*0.1) | abs(n*0.1 - 1) | math.sqrt(n)
    n**0.5 | math.ceil(n*0.3) | math.floor(n*0.3) | math.trunc(n*0.3) | (n*0.3)//1 | (n*0.3)%m
    round(n/3) | torch.sym_max(n*0.5, 1.5) | torch.sym_ite(n > m, n, m) | torch.sym_not(n > m)
    n*0.3 > 2 | i*j | i - j | i/j | i*0.3 | i//(j*j + 1) | torch.sym_ite(i > j, i, j)
    i > j | (i > 3) & (n > 3) | f*g | f - g | -f | abs(f) | f**3 | f**0.5 | f//0.3 | f%0.3
    math.sqrt(f*f) | math.floor(f) | f > 0.5 | f == g
    torch.sym_not(f > g) | (f > 0) | torch.sym_min(f, 1.0)
    f*n + i | f.is_integer() | torch.sym_ite(f > g, i, j) | math.floor(f)*math.ceil(g)
    torch.sym_not(b) | b & (n > 3)
"""
NOT_READ = "math.log2(n) | math.sin(n) | math.tanh(f) | round(n*0.3) | round(f) | round(f, 1)"
ARGS = (
    torch.randn(12, 3),
    torch.randn(8, 2),
    torch.tensor([7, 5]),
    torch.tensor([3.7, 0.6]),
    torch.tensor(True),
)


def computed(*texts: str) -> Any:
    code = compile(f"[{', '.join(texts)}]", "<text>", "eval")

    def run(x: Any, y: Any, whole: Any, real: Any, truth: Any) -> Any:
        names = {"n": x.shape[0], "m": y.shape[0], "torch": torch, "math": math}
        used = code.co_names
        names |= {k: whole[i].item() for i, k in enumerate("ij") if k in used}
        names |= {k: real[i].item() for i, k in enumerate("fg") if k in used}
        names |= {"b": truth.item()} if "b" in used else {}
        found = []
        for value in eval(code, names):
            is_truth = isinstance(value, (bool, torch.SymBool))
            found.append(x.sum() * (torch.sym_ite(value, 1, 0) if is_truth else value))
        return found

    return run


def texts(given: str) -> list[str]:
    return [text.strip() for line in given.strip().split("\n") for text in line.split("|")]


def round_trip(*texts: str) -> tuple[bytes, Any]:
    run = computed(*texts)
    want = run(*ARGS)
    program = lostwax.export(run, ARGS, dynamic_shapes=({0: AUTO}, {0: AUTO}, None, None, None))
    data = saved(program)
    again = lostwax.load(io.BytesIO(data))
    assert_identical(program, again)
    assert repr(again.range_constraints) == repr(program.range_constraints)
    assert saved(again) == data
    for each in (program, again):
        torch.testing.assert_close(each.module()(*ARGS), want)
    return data, want


def is_read(text: str) -> bool:
    """By the torch at hand."""
    rounds = any(name in text for name in ("abs(", "math.floor(", "math.ceil("))
    return torch_version.LOAD_KNOWS_ROUNDING or not rounds


TOGETHER = sampled(8, 1)
"""So many numbers are in one program: torch takes a second to read one."""
ALONE = "f.is_integer()"
"""Beside other truths of data it changes names with one of them when a file is loaded: r0, r1."""
ALL_READ = [text for text in texts(READ_BY_TORCH) if is_read(text) and text != ALONE]
GROUPS = [[ALONE], *(ALL_READ[i : i + TOGETHER] for i in range(0, len(ALL_READ), TOGETHER))]


@pytest.mark.parametrize("some", GROUPS, ids=" | ".join)
def test_numbers_that_torch_reads(some: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data, want = round_trip(*some)
    torch.testing.assert_close(peer_load(data).module()(*ARGS), want)


@pytest.mark.parametrize(
    "text", [*texts(NOT_READ), *(t for t in texts(READ_BY_TORCH) if not is_read(t))]
)
def test_numbers_that_torch_does_not_read(text: str) -> None:
    with pytest.warns(UserWarning, match="torch.export.load will not read") as told:
        data, _ = round_trip(text)
    assert "test_spelling.py" in str(told[0].message)
    assert "of numbers" in str(told[0].message)
    with pytest.raises(Exception, match=r"(?s)."):
        peer_load(data)


def test_conditions_on_floats_come_back() -> None:
    def run(real: Any) -> Any:
        f = real[0].item()
        torch._check(f > 0.5)
        torch._check(f < 100)
        n = math.floor(f)
        torch._check(n >= 2)
        return real * f * n

    program = lostwax.export(run, (torch.tensor([3.7, 0.6]),))
    again = lostwax.load(io.BytesIO(saved(program)))
    assert repr(again.range_constraints) == repr(program.range_constraints)
    assert [str(g) for g in again.guards] == [str(g) for g in program.guards]
    for given in (0.1, 1.5, 3.0, 1000.0):
        answers = []
        for each in (program, again):
            try:
                answers.append(str(each.module()(torch.tensor([given, 1.0]))))
            except RuntimeError as error:
                answers.append(str(error))
        assert answers[0] == answers[1]
        assert ("required" in answers[0]) == (given != 3.0)
