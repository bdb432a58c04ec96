"""What errors propose, in words of the command line: `--dynamic 1=length:2..` where Python would
declare `length = Dim("length", min=2)`. Must not import torch."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Iterator, Sequence

from lostwax.cli.models.grammar import DYNAMIC
from lostwax.errors import LostwaxError

_HEADING = "Suggested fixes:"
_DIM = r"Dim\(['\"](?P<of>\w+)['\"](?:, min=(?P<min>\d+))?(?:, max=(?P<max>\d+))?\)"
_FIX = re.compile(
    rf"(?P<dim>\w+) = (?:{_DIM}|(?P<constant>\d+)"
    r"|(?:(?P<scale>\d+)\*)?(?P<root>[A-Za-z_]\w*)(?: (?P<sign>[+-]) (?P<offset>\d+))?)(?:  #.*)?"
)
_BOUND = re.compile(r"a bound for (\w+): Dim\(name, max=\.\.\.\) in dynamic_shapes")
_SPEC = re.compile(r"dynamic_shapes=\{(?:\"\w+\": \{[^{}]*\}(?:, )?)+\}")
_CONSTANT = re.compile(r"constants=\{(?:'([^']*)'|\"([^\"]*)\")\}")
_FORGOTTEN = re.compile(r"in dynamic_shapes, write ((?:\w+: \{[^{}]*\}(?:, )?)+)")
_ENTRY = re.compile(r"\b(\w+): \{([^{}]*)\}")


@contextlib.contextmanager
def in_options(dynamic: Sequence[str]) -> Iterator[None]:
    """What is refused inside, told in options beside those that were given."""
    try:
        yield
    except LostwaxError as error:
        if error.args and isinstance(error.args[0], str):
            error.args = (write_in_options(error.args[0], dynamic), *error.args[1:])
        raise


def write_in_options(text: str, dynamic: Sequence[str]) -> str:
    """A message of Python's, with options for what Python would write."""
    given = [found for each in dynamic if (found := DYNAMIC.fullmatch(each))]
    text, heading, fixes = text.partition(_HEADING)
    text = re.sub(r"(?:; )?declare (\w+ = [^\n]*)", lambda m: _propose(m, given), text)
    text = re.sub(r"(?<=never varies: )(\w+ = \d+)", lambda m: _propose(m, given), text)
    text = re.sub(rf"(\w+ = {_DIM})", lambda m: _propose(m, given), text)
    text = _SPEC.sub(_write_spec, text)
    text = re.sub(r"pass \w+\.to\(torch\.(\w+)\)", r"give an --input of \1", text)
    text = _FORGOTTEN.sub(_write_forgotten, text)
    text = _BOUND.sub(lambda m: _propose_bound(m[1], given), text)
    text = re.sub(rf"declared {_DIM}", lambda m: f"declared {_find_given(m, given)}", text)
    text = re.sub(_DIM, lambda m: f"{m['of']}{_write_range(m['min'], m['max'])}", text)
    text = _CONSTANT.sub(lambda m: f"--constant {shlex.quote(m[1] or m[2])}", text)
    for python, option in _WORDS:
        text = text.replace(python, option)
    if not heading:
        return text
    lines = [line.strip() for line in fixes.strip().splitlines()]
    proposed = "\n".join(f"    {each}" for each in _write_fixes(lines, given))
    return f"{text}{heading}\n{proposed}"


_WORDS = (
    ('export(..., control_flow="sizes")', "--control-flow sizes"),
    ('control_flow="refuse"', "--control-flow refuse"),
    ("strict=True", "--strict"),
    ("lostwax.save and torch.export.save write", "lostwax export MODEL -o FILE writes"),
    ("lostwax.pte reads and runs it", "lostwax show and lostwax run take it"),
    ("dynamic_shapes: ", "--dynamic: "),
    ("dynamic_shapes has the form of the arguments, with a Dim, ", "--dynamic gives "),
    ("the sizes that dynamic_shapes declares", "the sizes that --dynamic declares"),
    ("constraints: ", "--constraint: "),
    ("constants names inputs", "--constant names inputs"),
    ('constraints=["seq % 8 == 0", "h == w", "2*h <= w + 1"]', "--constraint 'length % 8 == 0'"),
    ("make one Dim and use it in both places", "one name with one range"),
    ("another Dim for", "another name for"),
    (", both are Dim ", ", both are "),
    ("Dim.AUTO", "auto"),
)
"""What Python says, and what to say instead."""


def _propose(found: re.Match[str], given: list[re.Match[str]]) -> str:
    """`; declare batch = Dim("batch", min=3)` as an option."""
    proposed = _write_fixes(re.split(r"; ", found[1]), given)
    lead = "; say " if found[0].startswith("; ") else ""
    return (lead + " ".join(proposed)).replace("say leave out", "leave out")


def _write_spec(found: re.Match[str]) -> str:
    """`dynamic_shapes={"x": {1: Dim("n")}}` as options."""
    return " ".join(
        f"--dynamic {name}.{axis}={dim['of']}{_write_range(dim['min'], dim['max'])}"
        for name, sizes in re.findall(r"\"(\w+)\": \{([^{}]*)\}", found[0])
        for axis, text in re.findall(r"(\d+): (Dim\([^)]*\))", sizes)
        if (dim := re.fullmatch(_DIM, text))
    )


def _write_forgotten(found: re.Match[str]) -> str:
    """`in dynamic_shapes, write mask: {0: batch, 1: 2*len + 1}` as options to add."""
    return "add " + " ".join(_write_entry(each) for each in _ENTRY.finditer(found[1]))


def _write_entry(found: re.Match[str]) -> str:
    """`mask: {0: batch, 1: 2*len + 1}` as options."""
    sizes = (size.split(": ") for size in found[2].split(", "))
    options = (f"{found[1]}.{axis}={name.replace(' ', '')}" for axis, name in sizes)
    return " ".join(f"--dynamic {shlex.quote(each)}" for each in options)


def _propose_bound(name: str, given: list[re.Match[str]]) -> str:
    own = [each for each in given if each["name"] == name]
    low = next((each["min"] for each in own if each["min"]), "")
    said = " ".join(_write_all(own, f"{name}:{low}..MAX"))
    return said if own else f"{said}, where the model is exported"


def _find_given(found: re.Match[str], given: list[re.Match[str]]) -> str:
    own = [each[0] for each in given if each["name"] == found["of"]]
    return f"--dynamic {own[0]}" if own else found["of"]


def _write_range(low: str | None, high: str | None) -> str:
    return f":{low or ''}..{high or ''}" if low or high else ""


def _write_fixes(lines: Sequence[str], given: list[re.Match[str]]) -> list[str]:
    """Each fix as an option; a Dim that is there for another alone is a part of that."""
    fixes = [(line, _FIX.fullmatch(line)) for line in lines]
    ranges = {m["dim"]: _write_range(m["min"], m["max"]) for _, m in fixes if m and m["of"]}
    roots = {m["root"] for _, m in fixes if m and m["root"]}
    written: list[str] = []
    for line, fix in fixes:
        own = [each for each in given if fix and each["name"] == fix["dim"]]
        if fix is None:
            written.append(_write_other(line))
        elif fix["constant"]:
            left = " ".join(f"--dynamic {each[0]}" for each in own) or f"--dynamic {fix['dim']}"
            written.append(f"leave out {left}: the size is {fix['constant']} always")
        elif fix["root"]:
            scale = f"{fix['scale']}*" if fix["scale"] else ""
            offset = f"{fix['sign']}{fix['offset']}" if fix["offset"] else ""
            name = f"{scale}{fix['root']}{offset}{ranges.get(fix['root'], '')}"
            written += _write_all(own, name, "0=")
        elif own or fix["dim"] not in roots:
            name = f"{fix['dim']}{ranges[fix['dim']]}"
            written += _write_all(own, name)
    return written


def _write_all(own: list[re.Match[str]], name: str, place: str = "") -> list[str]:
    """The options of one size, each with the input and axis that it was given with."""
    places = ["".join(each[0].rpartition("=")[:2]) for each in own] or [""]
    return [f"--dynamic {shlex.quote(f'{each or place}{name}')}" for each in places]


def _write_other(line: str) -> str:
    if line.startswith("constraints="):
        found = re.findall(r"'([^']*)'|\"([^\"]*)\"", line)
        return " ".join(f"--constraint {shlex.quote(a or b)}" for a, b in found)
    placed = _ENTRY.fullmatch(line.partition("  #")[0])
    return f"add {_write_entry(placed)}" if placed else line
