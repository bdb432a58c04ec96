"""The reading of bytecode, for Python 3.11 to 3.13.

Hundreds of functions run in one export, and all of them are read. So an outline looks at the bytes:
whether an instruction occurs at all is one search in them, and most do not. Who has to know what
stands where reads the steps, which is slow: they have names that are the same in every Python, and
each does one thing. (Python 3.13 writes two instructions as one, `LOAD_FAST_LOAD_FAST`; Python 3.11
writes two for one call.) Must not run anything. Layer 0: imports nothing of lostwax but `cache`.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from lostwax.cache import cached_by_identity

NOWHERE: frozenset[int] = frozenset()
_LONGEST = 80  # instructions of a side that raises


# --------------------------------------------------------------------- functions and their outlines


def closure_variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The names and values in a function's closure."""
    cells = function.__closure__ or ()
    for name, cell in zip(function.__code__.co_freevars, cells, strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # it is not set yet
            continue


def argument_defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The arguments that have defaults, with these."""
    code, values = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    unnamed = max(0, len(values) - len(names))  # a decorator may have copied those of another one
    yield from zip(names[len(names) - len(values) + unnamed :], values[unnamed:], strict=True)
    yield from (function.__kwdefaults__ or {}).items()


class Outline(NamedTuple):
    """What stands in a function's code and in the functions defined in it."""

    codes: tuple[CodeType, ...]
    names: tuple[str, ...]
    """Of globals and of attributes."""
    operations: bytes
    """The instructions, without their arguments."""

    def has_imports(self) -> bool:
        return _IMPORT_NAME in self.operations

    def globals_set(self) -> set[str]:
        if _STORE_GLOBAL not in self.operations:
            return set()
        return set[str]().union(*map(_globals_set, self.codes))

    def nonlocals_set(self) -> set[str]:
        """The variables of enclosing functions that are set (`nonlocal`)."""
        if _STORE_DEREF not in self.operations:
            return set()
        return set[str]().union(*map(_nonlocals_set, self.codes))

    def sets_attributes(self) -> bool:
        """Is there an `x.name = y`, or a `del x.name`?"""
        return any(each in self.operations for each in _SET_ATTRIBUTE)

    def may_set_computed_names(self) -> bool:
        """May it set attributes whose names are computed?"""
        return not _SETTING_BY_NAME.isdisjoint(self.names)

    def may_read_computed_names(self) -> bool:
        """May it read attributes whose names are computed?"""
        return not READING_BY_NAME.isdisjoint(self.names)

    def may_reach_unnamed(self) -> bool:
        """May it get at what no name in it leads to?"""
        return not _REFLECTIVE_NAMES.isdisjoint(self.names)


EMPTY = Outline((), (), b"")


@cached_by_identity(20_000)
def outline(code: CodeType) -> Outline:
    inner = [outline(each) for each in code.co_consts if type(each) is CodeType]
    if not inner:
        return Outline((code,), code.co_names, code.co_code[::2])
    return Outline(
        (code, *[part for each in inner for part in each.codes]),
        tuple(dict.fromkeys([*code.co_names, *[name for each in inner for name in each.names]])),
        b"".join([code.co_code[::2], *[each.operations for each in inner]]),
    )


def nested_codes(code: CodeType) -> tuple[CodeType, ...]:
    """A code object, and those of the functions defined in it."""
    return outline(code).codes


@cached_by_identity(20_000)
def globals_read(code: CodeType) -> frozenset[str]:
    """The globals that it reads. (`code.co_names` has the names of attributes, too.)"""
    names = code.co_names
    found = [names[argument >> 1] for argument in _arguments(code, _LOAD_GLOBAL)]
    return frozenset(found + [names[argument] for argument in _arguments(code, _LOAD_NAME)])


@cached_by_identity(20_000)
def words(code: CodeType) -> tuple[str, ...]:
    """Its names, and its strings, which may be names, too: `getattr(module, "name")`."""
    return (*code.co_names, *[each for each in code.co_consts if type(each) is str])


def modules_imported(code: CodeType, known: dict[str, Any]) -> tuple[str, ...]:
    """The full names of the modules that the code imports when it runs."""
    package = known.get("__package__") or str(known.get("__name__")).rpartition(".")[0]
    return tuple([_absolute_name(name, level, package) for name, level in _imports(code)])


@cached_by_identity(5000)
def _imports(code: CodeType) -> list[tuple[str, int]]:
    """The names that it imports, each with how many packages up it begins (`from .. import x`)."""
    found, written = [], code.co_code
    for at in find_units(written[::2], _IMPORT_NAME):
        start, name = read_argument(written, at)
        start, _ = read_argument(written, start - 1)  # the names that it takes from the module
        _, level = read_argument(written, start - 1)
        found.append((code.co_names[name], code.co_consts[level]))
    return found


def _absolute_name(name: str, level: int, package: str) -> str:
    if level == 0:
        return name
    above = package.rsplit(".", level - 1)[0]
    return f"{above}.{name}" if name else above


def _globals_set(code: CodeType) -> set[str]:
    return {code.co_names[argument] for argument in _arguments(code, _STORE_GLOBAL)}


def _nonlocals_set(code: CodeType) -> set[str]:
    own = len({*code.co_varnames, *code.co_cellvars})
    stored = _arguments(code, _STORE_DEREF)  # its own variables are numbered first
    return {code.co_freevars[argument - own] for argument in stored if argument >= own}


def _arguments(code: CodeType, operation: int) -> list[int]:
    written = code.co_code
    return [read_argument(written, at)[1] for at in find_units(written[::2], operation)]


_LOAD_GLOBAL = dis.opmap["LOAD_GLOBAL"]
_LOAD_NAME = dis.opmap["LOAD_NAME"]
_STORE_GLOBAL = dis.opmap["STORE_GLOBAL"]
_STORE_DEREF = dis.opmap["STORE_DEREF"]
_IMPORT_NAME = dis.opmap["IMPORT_NAME"]
_SET_ATTRIBUTE = [dis.opmap["STORE_ATTR"], dis.opmap["DELETE_ATTR"]]


# ------------------------------------------------------------------- what names say of behaviour

CHANGING_METHODS = frozenset(
    (
        "append", "appendleft", "add", "update", "setdefault", "insert", "extend", "extendleft",
        "pop", "popleft", "popitem", "remove", "discard", "clear", "reverse", "sort", "rotate",
        "fill", "set",
    )
)  # fmt: skip
_SETTING_BY_NAME = frozenset(("setattr", "delattr", "vars", "__dict__", "__setattr__"))
READING_BY_NAME = frozenset(
    ("getattr", "hasattr", "vars", "__dict__", "__getattr__", "attrgetter", "methodcaller")
)
_REFLECTIVE_NAMES = frozenset(
    (
        "globals", "locals", "vars", "eval", "exec", "__import__", "import_module", "modules",
        "f_back", "f_globals", "f_locals", "get_objects", "get_referrers", "get_referents",
        "__globals__", "__closure__",
    )
)  # fmt: skip
"""Who has a frame needs one of its attributes to get further."""


# ---------------------------------------------------------------------------------------- the bytes


def find_units(operations: bytes, operation: int) -> Iterator[int]:
    """Yield where an instruction stands, of code without its arguments (`co_code[::2]`)."""
    at = operations.find(operation)
    while at >= 0:
        yield at
        at = operations.find(operation, at + 1)


def read_argument(written: bytes, at: int) -> tuple[int, int]:
    """Where an instruction begins, and its argument. The bytes of it that do not fit into one stand
    in front, in instructions of their own."""
    start = at
    while start and written[2 * start - 2] == dis.EXTENDED_ARG:
        start -= 1
    return start, int.from_bytes(written[2 * start + 1 : 2 * at + 2 : 2], "big")


def instruction_at(code: CodeType, offset: int) -> str:
    """The name of the instruction at which a frame is. (Python may count the room behind it to
    it.)"""
    written = code.co_code
    while dis.opname[written[offset]] == "CACHE":
        offset -= 2
    return dis.opname[written[offset]]


class Guarded(NamedTuple):
    """A part of code from which exceptions go to a handler."""

    start: int
    length: int
    handler: int
    depth: int
    """Of the stack, and whether the handler is told where it was raised."""


def read_guarded(table: bytes) -> list[Guarded]:
    """Read `co_exceptiontable`: four numbers an entry, each in groups of six bits, of which all but
    its last are marked."""
    numbers, number = list[int](), 0
    for byte in table:
        number = number << 6 | byte & 0x3F
        if not byte & 0x40:
            numbers.append(number)
            number = 0
    return [Guarded(*numbers[i : i + 4]) for i in range(0, len(numbers), 4)]


# -------------------------------------------------------------------------------------------- steps


class Instruction(NamedTuple):
    """One instruction. The names are those of `dis`."""

    opname: str
    arg: int
    argval: Any
    """What its argument stands for: a name, a constant, where it jumps."""
    offset: int
    """Where a frame is that runs it."""
    start: int
    """Where a jump to it leads: parts of its argument may stand in front."""
    is_jump_target: bool
    positions: dis.Positions

    @property
    def line(self) -> int | None:
        return self.positions.lineno


def is_inside(one: dis.Positions, other: dis.Positions) -> bool:
    """Of two places in the source, each from a line to a line, and from a column to a column."""
    if None in one or None in other:
        return False
    start, end = (one[0], one[2]), (one[1], one[3])
    return bool((other[0], other[2]) <= start and end <= (other[1], other[3]))


@cached_by_identity(1000)
def read_steps(code: CodeType) -> tuple[Instruction, ...]:
    found, start, is_target = list[Instruction](), None, False
    for each in dis.get_instructions(code):
        start, is_target = each.offset if start is None else start, is_target or each.is_jump_target
        if each.opname in ("EXTENDED_ARG", "PRECALL"):
            continue
        place = each.positions or dis.Positions()
        for name, value in _take_apart(each):
            found.append(
                Instruction(name, each.arg or 0, value, each.offset, start, is_target, place)
            )
            is_target = False
        start = None
    return tuple(found)


def _take_apart(read: dis.Instruction) -> Iterator[tuple[str, Any]]:
    name, value = read.opname, read.argval
    if name == "RETURN_CONST":
        yield "LOAD_CONST", value
        yield "RETURN_VALUE", None
    elif name.count("_FAST") == 2 and isinstance(value, tuple):
        yield from zip(name.replace("FAST_", "FAST ").split(), value, strict=True)
    elif name == "COMPARE_OP" and read.argrepr.startswith("bool("):
        yield name, value
        yield "TO_BOOL", None
    elif name == "LOAD_METHOD":
        yield "LOAD_ATTR", value
    elif name.startswith("POP_JUMP_"):
        yield name.replace("FORWARD_", "").replace("BACKWARD_", ""), value
    else:
        yield name, value


def read_lines(code: CodeType) -> dict[int, list[Instruction]]:
    """The steps of each line of the source."""
    found: dict[int, list[Instruction]] = {}
    for step in read_steps(code):
        if step.line is not None:
            found.setdefault(step.line, []).append(step)
    return found


def find_places(steps: tuple[Instruction, ...] | list[Instruction]) -> dict[Any, int]:
    """Where among these steps a jump to an offset leads."""
    return {each.start: i for i, each in reversed([*enumerate(steps)])}


@cached_by_identity(1000)
def read_handlers(code: CodeType) -> tuple[tuple[int, int, int], ...]:
    """From where to where exceptions are caught, and by which handler; the innermost first."""
    return tuple(
        (2 * start, 2 * (start + length), 2 * handler)
        for start, length, handler, _ in read_guarded(code.co_exceptiontable)
    )


def sets(step: Instruction, name: str) -> bool:
    """Does it set or delete an attribute or variable of this name that outlives the call?"""
    return step.opname in _SETTING and step.argval == name


def gets(step: Instruction, name: str) -> bool:
    """Does it read such an attribute or variable?"""
    return step.opname in _GETTING and step.argval == name


def puts_item(step: Instruction) -> bool:
    """Does it set or delete an item, `x[i] = y`?"""
    return step.opname in ("STORE_SUBSCR", "STORE_SLICE", "DELETE_SUBSCR")


_SETTING = frozenset(("STORE_ATTR", "DELETE_ATTR", "STORE_DEREF", "STORE_GLOBAL"))
_GETTING = frozenset(("LOAD_ATTR", "LOAD_DEREF", "LOAD_GLOBAL"))


# ---------------------------------------------------------------------------------- chains of names


class Chain(NamedTuple):
    """A name, and what is read of it."""

    operation: str
    name: str
    steps: tuple[tuple[str, Any], ...]
    line: int


@cached_by_identity(5000)
def read_chains(code: CodeType) -> tuple[Chain, ...]:
    """The names that the code reads, with the functions defined in it."""
    return tuple([chain for each in nested_codes(code) for chain in _read_chain(each)])


def _read_chain(code: CodeType) -> Iterator[Chain]:
    chain: Chain | None = None
    constants: list[Any] = []
    line = code.co_firstlineno
    for step in read_steps(code):
        line = step.line or line
        if chain is not None and step.opname == "LOAD_ATTR":
            chain = chain._replace(steps=(*chain.steps, ("attribute", step.argval)))
        elif chain is not None and step.opname == "LOAD_CONST":
            constants = [step.argval]
        elif chain is not None and step.opname == "BINARY_SUBSCR" and constants:
            chain = chain._replace(steps=(*chain.steps, ("item", constants.pop())))
        else:
            if chain is not None:
                yield chain
            begins = step.opname in _BEGINNING
            chain = Chain(step.opname, step.argval, (), line) if begins else None
            constants = []
    if chain is not None:
        yield chain


_BEGINNING = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_GLOBAL", "LOAD_DEREF")


# -------------------------------------------------------------------------------- where code raises


class Raised(NamedTuple):
    offset: int
    names: tuple[str, ...]
    """The globals that are read on the way there: the exception's class is one of them."""


@cached_by_identity(1000)
def find_raising(code: CodeType) -> dict[tuple[int, bool], Raised]:
    """For each place where a truth is asked, and each answer after which the code raises: where it
    raises."""
    steps = _read_raising(code)
    places = find_places(steps)
    found: dict[tuple[int, bool], Raised] = {}
    for i, jumps_if, asked in _jumps(steps):
        for start, answer in ((places.get(steps[i].argval), jumps_if), (i + 1, not jumps_if)):
            end = None if start is None else _raised_at(steps[start : start + _LONGEST])
            if end is not None:
                found.update({(offset, answer): end for offset in asked})
    return found


@cached_by_identity(1000)
def find_moot(code: CodeType) -> dict[tuple[int, bool], frozenset[int]]:
    """For each place where a truth is asked, and the answer after which further parts of the
    condition are: where these are asked, if all that is left is to raise or not."""
    steps = _read_raising(code)
    found: dict[tuple[int, bool], frozenset[int]] = {}
    for i, jumps_if, asked in _jumps(steps):
        later = _only_asks_on(steps[i + 1 : i + _LONGEST], steps[i].argval)
        if later:
            found.update({(offset, not jumps_if): later for offset in asked})
    return found


@cached_by_identity(1000)
def _read_raising(code: CodeType) -> list[Instruction]:
    """Its instructions; none if it never raises, as then no answer leads there."""
    if _RAISE not in code.co_code[::2]:
        return []
    steps, read = list[Instruction](), read_steps(code)
    for i, step in enumerate(read):
        last = steps[-1] if steps else None
        jumped = None if last is None else _ON_TRUTH.get(last.opname)
        if (
            step.opname.startswith("JUMP_BACKWARD")
            and last is not None
            and jumped is not None
            and last.argval == (read[i + 1].start if i + 1 < len(read) else None)
        ):  # since Python 3.12 no jump on a truth goes back: it jumps over one that does
            steps[-1] = last._replace(argval=step.argval, opname=_NAMES[not jumped])
        else:
            steps.append(step)
    return steps


def _jumps(steps: list[Instruction]) -> Iterator[tuple[int, bool, list[int]]]:
    """Yield each step that jumps on a truth, the truth on which it jumps, and where it is asked."""
    for i, step in enumerate(steps):
        if step.opname in _ON_TRUTH:
            yield i, _ON_TRUTH[step.opname], _find_asking(steps, i)


def _find_asking(steps: Sequence[Instruction], i: int) -> list[int]:
    """Where the truth on which this step jumps may be asked. (From Python 3.13 on, before it.)"""
    before = steps[max(i - 1, 0) : i]
    return [steps[i].offset, *[each.offset for each in before if each.opname == "TO_BOOL"]]


def _only_asks_on(steps: list[Instruction], way_out: object) -> frozenset[int]:
    """Find where these steps ask, if they only look at things and ask, each time with the same way
    out, until they raise."""
    later: list[int] = []
    is_looking = True
    for i, step in enumerate(steps):
        if step.opname == "RAISE_VARARGS":
            return frozenset(later)
        if step.opname in _ON_TRUTH:
            if not is_looking or step.argval != way_out:
                return NOWHERE
            later += _find_asking(steps, i)
        elif _goes_elsewhere(step):
            return NOWHERE
        else:
            is_looking = is_looking and step.opname.startswith(_LOOKING)
    return NOWHERE


def _raised_at(steps: list[Instruction]) -> Raised | None:
    """Where these steps raise, if they go there without a branch."""
    names: list[str] = []
    for step in steps:
        if step.opname == "RAISE_VARARGS":
            return Raised(step.offset, tuple(names))
        if _goes_elsewhere(step):
            return None
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            names.append(str(step.argval))
    return None


def _goes_elsewhere(step: Instruction) -> bool:
    return "JUMP" in step.opname or step.opname.startswith(_ENDING)


_NAMES = {answer: f"POP_JUMP_IF_{answer}".upper() for answer in (True, False)}
_ON_TRUTH = {name: answer for answer, name in _NAMES.items()}
_ENDING = ("RETURN", "YIELD", "SEND", "RERAISE", "FOR_ITER")
_LOOKING = ("LOAD_", "BINARY_", "COMPARE_", "UNARY_", "TO_BOOL", "IS_OP", "CONTAINS_OP")
_RAISE = dis.opmap["RAISE_VARARGS"]
