"""What a program cannot have, refused where the module asks for it: operators that take functions
and that nothing records, generators and seeds, another default dtype, tensors of another class,
handlers of what sizes raise.

Must not know where it is met.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import FunctionType
from typing import Any, NoReturn

import torch
from torch._ops import OpOverload

from lostwax.branches import is_caught_above
from lostwax.bytecode import is_inside, read_steps
from lostwax.cache import cached
from lostwax.capture.attempt import Retry
from lostwax.capture.python.one_of import OneOf
from lostwax.classes import SYMBOLIC
from lostwax.errors import (
    CaptureError,
    DataDependentError,
    LostwaxError,
    MissingFakeRuleError,
    NotYetError,
    UnsupportedFakeError,
    asks_data,
    find_own_error,
)
from lostwax.fake.fallback import is_foreign
from lostwax.fake.refusals import other_class_error
from lostwax.fake.symbolic.node import unwrap
from lostwax.fake.tensor import FakeTensor, has_symbol
from lostwax.fake.write import flatten
from lostwax.handlers import is_caught
from lostwax.location import (
    Location,
    asking_frame,
    find_tracebacks,
    is_of_python,
    is_user_code,
    user_location,
)
from lostwax.ops.traits import OperatorRefusal
from lostwax.sym import BoolExpr, Expr, Guard, ShapeEnv, eq
from lostwax.sym.numbers.real import Real


def refuse(operator: Any) -> NoReturn:
    """A higher-order operator met the tracer that no program has."""
    raise NotYetError(
        f"{operator._name} in a program to be captured",
        "call the functions themselves",
        why="nothing records the functions that it takes",
        where=str(user_location()),
    )


def refuse_operator(overload: OpOverload, refusal: OperatorRefusal) -> NoReturn:
    """An operator met the tracer that no program can have."""
    name = overload._schema.name.partition("::")[2]
    raise CaptureError.here(
        f"{refusal.text.format(overload=overload, name=name)}",
        why=f"{refusal.why}",
        instead=f"{refusal.instead}",
    )


def refuse_class(name: str) -> NoReturn:
    """Of a variable that is a number before a loop, and a tensor from its first turn on."""
    raise CaptureError.here(
        f"it is asked of what class {name} is, or a value that is computed of it, which is a "
        "number in the first turn of a loop on data, and a tensor later",
        why="the body is one graph, for every iteration",
        instead=f"let it be a tensor from the beginning, {name} = torch.zeros(...); or count the "
        "turns, and ask for that",
    )


def refuse_generator() -> NoReturn:
    """A seed or a generator inside the program."""
    raise CaptureError.here(
        "a program has no random generator of its own, and seeds none",
        why="random operators draw from the generator of who runs it",
        instead="call torch.manual_seed outside, or pass the random numbers as an input",
    )


def refuse_linearize() -> NoReturn:
    raise NotYetError(
        "torch.func.linearize in a program to be captured",
        "torch.func.jvp(f, primals, tangents), which computes both at once",
        why="it traces the function by itself",
        where=str(user_location()),
    )


def refuse_triton() -> NoReturn:
    """A Triton kernel is launched by the program itself."""
    raise CaptureError.here(
        "a Triton kernel is launched in a program to be captured",
        why="a program has operators, and a kernel is none",
        instead='put the launch into a function under @torch.library.triton_op("name::kernel", '
        "mutates_args={}), and call that: it stays one operator",
    )


def refuse_jiterator() -> NoReturn:
    raise CaptureError.here(
        "a function of torch.cuda.jiterator in a program to be captured",
        why="it is compiled and launched past torch's operators",
        instead="compute with operators; or call it in a function under @torch.library.custom_op, "
        "with a fake kernel (register_fake)",
    )


def refuse_default(dtype: torch.dtype) -> NoReturn:
    """Another default dtype inside the program."""
    raise CaptureError.here(
        f"torch.set_default_dtype({dtype}) in a program to be captured",
        why="it would hold for the capture, and not for the program when it runs",
        instead=f"say it where tensors are made, torch.ones(n, dtype={dtype})",
    )


def refuse_caught(seen: Sequence[BaseException]) -> None:
    """Refuse a program if the module's own code caught one of our refusals: eager would not have
    raised it, so the program went another way. What it has stopped on the way is stopped now."""
    for retry in [each for each in seen if isinstance(each, Retry)]:
        raise retry
    for error in _list_refusals(seen):
        raise CaptureError(
            f"{error}\n  note: the module's own code caught this error and went on, where "
            "eager would not have raised it"
        ) from error


def _list_refusals(seen: Sequence[BaseException]) -> list[BaseException]:
    kinds = (
        CaptureError, DataDependentError, MissingFakeRuleError, NotYetError, UnsupportedFakeError
    )  # fmt: skip
    return [error for error in seen if isinstance(error, kinds)]


def refuse_failed(error: Exception, env: ShapeEnv, seen: Sequence[BaseException]) -> None:
    """If the module has failed where eager might not, raise an error that says so. `seen` are the
    refusals so far."""
    if find_own_error(error) is not None:
        return
    if isinstance(error, RuntimeError):
        _refuse_what_cpp_refuses(error)
        _refuse_what_data_decides(error, env.guards)
    for refusal in reversed(_list_refusals(seen)):  # C may raise another error in its place
        raise refusal from error
    refuse_symbol(error, env)


def refuse_caught_symbol(error: TypeError, env: ShapeEnv) -> None:
    """The same, where the user's code may catch that: its handler would run for all data. What
    Python says of a plain number, too, and of a call with other arguments, eager raises as well."""
    text = str(error)
    is_parsed = "invalid combination of arguments" in text and "SymBool" not in text
    if not (is_parsed or re.search(_BINDING, text) or re.sub(_PLAIN_NAME, "", text) in _of_plain()):
        refuse_symbol(error, env, ", and that may be caught")


@cached(1)
def _of_plain() -> frozenset[str]:
    """What Python says of a plain number that is used as something else; without its class."""
    found: list[str] = []
    for use in _OTHER_USES:
        try:
            exec(use, {"n": 1})
        except TypeError as error:
            found.append(re.sub(_PLAIN_NAME, "", str(error)))
    return frozenset(found)


_OTHER_USES = (
    "iter(n)", "len(n)", "next(n)", "n()", "n[0]", "n[0] = 1", "del n[0]", "[*n]", "print(*n)",
    "{**n}", "a, b = n", "1 in n", "with n: pass", "reversed(n)", "isinstance(1, n)",
)  # fmt: skip


def refuse_symbol(error: Exception, env: ShapeEnv, more: str = "") -> None:
    """If a function failed as it does not take symbolic numbers, raise an error that says so."""
    text = str(error).partition(", but expected")[0]
    is_named = re.search(_SYMBOL, text) or "numpy.object_" in text or text.startswith("__")
    if not env.symbols or not (is_named or _is_given_symbol(error)):
        return
    why, instead = "it reads plain numbers, and nothing else", _PLAIN
    if text.startswith("__"):
        why, instead = "Python takes no other from an object", _OWN_METHOD
    elif re.search(_ARGUMENT, text):
        why, instead = "an argument of this operator is fixed in the program", _FIXED
    raise CaptureError(
        f"{text}, and this one depends on data or on a size{more}.\n  at {_raised_at(error)}\n"
        f"  why: {why}\n  instead: {instead}"
    ) from error


def _is_given_symbol(error: Exception) -> bool:
    """Is it C, or Python's own library, that raises, and is such a number among the names of the
    expression that calls it, or an object that may give one?"""
    entries = list(find_tracebacks(error))
    found = [each for each in entries if is_user_code(each.tb_frame.f_code)][-1:]
    if not found or isinstance(error, (RuntimeError, LookupError, AssertionError)):
        return False
    frame, at, last = found[0].tb_frame, found[0].tb_lasti, entries[-1].tb_frame
    steps = read_steps(frame.f_code)
    # A frame that has called one of Python's stands behind what the call keeps for itself.
    raised = next((step for step in reversed(steps) if step.offset <= at), None)
    if raised is None or raised.opname == "RAISE_VARARGS":
        return False
    if not (last is frame or is_of_python(last.f_code.co_filename)):
        return False
    names = {**frame.f_globals, **frame.f_locals}
    return any(
        isinstance(step.argval, str)
        and " " not in step.argval  # a variable of hooks
        and is_inside(step.positions, raised.positions)
        and _may_be_symbol(names.get(step.argval))
        for step in steps
    )


def _may_be_symbol(value: Any) -> bool:
    kind = value if isinstance(value, type) else type(value)
    if kind is OneOf:  # an option of it is what the expression has
        return False
    return has_symbol(value) or isinstance(getattr(kind, "__index__", None), FunctionType)


_SYMBOL = rf"\b({'|'.join(each.__name__ for each in SYMBOLIC)})\b"
_PLAIN_NAME = rf"\b(int|{'|'.join(each.__name__ for each in SYMBOLIC)})\b"
_BINDING = r"\(\) (got|missing|takes|received) (?!an invalid combination)|keyword arg"
_ARGUMENT = r"argument '.*' .*must be|invalid combination of arguments"
_FIXED = "call it on both sides of an `if`, with True and with False"
_OWN_METHOD = (
    "give the class a method of another name that returns it, if obj.holds(): …, xs[obj.place()]"
)
_PLAIN = (
    "compute with Python's operators, with math or with torch; of a size, int(n) is a plain "
    "number, which fixes it"
)


def _refuse_what_cpp_refuses(error: RuntimeError) -> None:
    """If C++ raised an error that says nothing to the user, raise one that does."""
    text = str(error)
    if text.startswith("Creating a new Tensor subclass"):
        raise other_class_error(text.split()[5], _raised_at(error)) from error
    if "on tensor with symbolic sizes/strides" in text:
        raise CaptureError(
            "a function of torch reads sizes as plain numbers, and one of them varies.\n"
            f"  at {_raised_at(error)}\n"
            "  instead: fix that size, or write the function with others"
        ) from error


def _refuse_what_data_decides(error: RuntimeError, guards: Sequence[Guard]) -> None:
    """If an operator fails for sizes that depend on data: say what was assumed of them. With others
    eager may not fail."""
    assumed = [guard for guard in guards if guard.kind == "assert"]
    if not assumed or type(error) is not RuntimeError or _is_raised_by_user(error):
        return
    listed = "".join(f"\n    {guard.predicate}, at {guard.where}" for guard in assumed)
    raise DataDependentError(
        f"{error}\n  at {_raised_at(error)}\n  why: sizes depend on data, and this is so where "
        f"they are as the lines before it ask for:{listed}\n"
        "  instead: if they are others, state it before these lines, torch._check(n == 1)"
    ) from error


def hold_sizes_of_failed(env: ShapeEnv, error: Exception, values: Sequence[Any]) -> None:
    """An operator has failed, and the program may catch that: so it does for these sizes, and with
    others it may not fail."""
    sizes = [n for value in flatten(values) for n in _list_sizes(value)]
    symbols = {each for n in sizes for each in n.symbols()}
    if not symbols or isinstance(error, LostwaxError) or asks_data(error):
        return
    frame = asking_frame()
    if not (is_caught(frame, frame.f_lasti, type(error)) or is_caught_above(frame, error)):
        return
    if not env.facts.fits_example or any(each.hint is None for each in symbols):
        raise CaptureError.here(
            f"an operator fails ({type(error).__name__}: {error}), and that may be caught",
            why="its sizes are known only when the program runs, which cannot catch anything",
            instead="ask for the sizes before, if x.shape[0] == 3: ...",
        ) from error
    for each in sorted(symbols, key=lambda symbol: symbol.id):
        assert each.hint is not None
        before = len(env.guards)
        env.assume(eq(each.expr, each.hint), "branch")
        if len(env.guards) > before:
            env.explain(f"{type(error).__name__}, which an operator raises there, may be caught")


def _list_sizes(value: Any) -> list[Expr | BoolExpr | Real]:
    """The numbers of an operand that vary."""
    found: list[Any] = []
    if isinstance(value, FakeTensor):
        t = value.fake_type
        found = [*t.size, *t.stride, t.offset]
    elif isinstance(value, SYMBOLIC):
        found = [unwrap(value)]
    return [each for each in found if isinstance(each, (Expr, BoolExpr, Real))]


def _is_raised_by_user(error: BaseException) -> bool:
    *_, at = [None, *find_tracebacks(error)]
    return at is not None and is_user_code(at.tb_frame.f_code)


def _raised_at(error: BaseException) -> Location | str:
    """The innermost line of the user's code in its traceback."""
    found: Location | str = "<unknown>"
    for at in find_tracebacks(error):
        code = at.tb_frame.f_code
        if is_user_code(code):
            found = Location(code.co_filename, at.tb_lineno, code.co_name)
    return found


def refuse_gradients_of_class(what: str, outputs: Sequence[Any]) -> None:
    """Refuse results of a class that handles operators itself, as gradients flow through them."""
    for each in outputs:
        if is_foreign(type(each)):
            kind = type(each).__name__
            raise CaptureError.here(
                f"{what} makes a {kind} that gradients flow through",
                why=f"a program has what is inside of a {kind}, whose gradients are others",
                instead="export it under torch.no_grad(), or with lostwax.export_joint, which "
                "records the backward",
            )
