"""Every exception that lostwax raises. The docstring of a class is its help page: it says what the
cause is and, under "What to do", how to go on. `docs/errors.md` shows each with an example.

Layer 0: imports nothing of the house but `location`. An error says what was refused, where in the
user's code, why, and what to write instead; it carries the values it speaks of.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

from lostwax.location import user_location


class LostwaxError(Exception):
    """The base class of every error that lostwax raises on purpose.

    What to do: catch it where any refusal of lostwax is meant. Most classes below are also a
    `RuntimeError`, `ValueError` or `TypeError`, so that code written for `torch.export` catches
    them as it is.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        for seen in _watching.lists[-1:]:
            seen.append(self)

    @property
    def msg(self) -> str:
        """The message, by the name that errors of torch.export have for it."""
        return str(self)

    @classmethod
    def here(cls, what: str, *, why: str = "", instead: str) -> Self:
        """The error about what the user's code does now, with its line."""
        reason = f"  why: {why}\n" if why else ""
        return cls(f"{what}.\n  at {user_location()}\n{reason}  instead: {instead}")


class _Watching(threading.local):
    lists: tuple[list[LostwaxError], ...] = ()


_watching = _Watching()


@contextmanager
def collect_errors() -> Iterator[list[LostwaxError]]:
    """List the errors that are made inside, also those that the user's code catches: after a
    refusal, eager would not go on as that code does."""
    before, seen = _watching.lists, list[LostwaxError]()
    _watching.lists = (*before, seen)
    try:
        yield seen
    finally:
        _watching.lists = before


def did_you_mean(name: Any, known: Iterable[Any], ask: str = "did you mean") -> str:
    """Ask whether the nearest of the known names was meant; empty if none is near."""
    from difflib import get_close_matches

    by_text = {str(each).lower(): each for each in known}
    close = get_close_matches(str(name).lower(), by_text, n=1)
    return f" ({ask} {by_text[close[0]]!r}?)" if close else ""


class DataDependentError(LostwaxError, RuntimeError):
    """The program asks for the data of a tensor that has none, most often by branching on it.

    Fake tensors know sizes, not values. `x.item()`, `x.nonzero()` and boolean masks give *unbacked*
    symbols: integers without an example value. A Python branch on one cannot be decided while
    tracing.

    What to do: state what you know before the line that asks, with `torch._check(n > 0)`; or
    compute with tensors (`torch.where`) instead of branching.
    """

    is_question = False
    """Does Python's control flow ask? Then it can be captured (`capture/flow/`)."""

    about: Any = None
    """What is asked: a condition or a number (`sym`)."""

    def ask(self, about: Any = None) -> Self:
        self.is_question, self.about = True, about
        return self


class ContradictionError(LostwaxError, RuntimeError):
    """Two facts about sizes exclude each other: no input can satisfy both.

    What to do: the message names the condition. One `torch._check` before it, or one declared
    range, is too narrow.
    """


class ParseError(LostwaxError, ValueError):
    """A text that should be an integer expression is not one.

    `text` is the whole text, `position` the index of the character where reading stopped.

    What to do: correct the text at the position that the message points to. Known are integers,
    names, `+ - * // %`, comparisons, `and`, `or`, `not`, `min` and `max`.
    """

    def __init__(self, message: str, text: str = "", position: int = 0) -> None:
        self.text, self.position = text, position
        start = max(0, position - 50)
        scene = "".join(c if c.isprintable() else " " for c in text[start : position + 30])
        caret = " " * (position - start) + "^"
        super().__init__(f"{message}\n  {scene}\n  {caret}" if text else message)


class UnsupportedFakeError(LostwaxError, RuntimeError):
    """An operation needs the data, the memory or the layout of a tensor in a way that a fake tensor
    cannot offer.

    What to do: keep the computation in torch, and read data (`numpy()`, `tolist()`, `data_ptr()`)
    from the real tensor, after the program has run.
    """


class NonFakeInputError(LostwaxError, RuntimeError):
    """A real tensor met an operator under a FakeTensorMode that does not convert real tensors by
    itself.

    What to do: convert it first, `mode.from_tensor(x)`; or build the mode with
    `FakeTensorMode(allow_non_fake_inputs=True)`.
    """


class MixedModeError(LostwaxError, RuntimeError):
    """Fake tensors of two different FakeTensorModes met in one operator.

    What to do: make all of them under one mode; `mode.from_tensor(other)` makes a fake of a fake.
    """


class MissingFakeRuleError(LostwaxError, RuntimeError):
    """Nothing is known of what an operator returns: no rule, no `register_fake`, no decomposition,
    no meta kernel.

    What to do: register one with `torch.library.register_fake("ns::op")`.
    """


class WrongFakeError(LostwaxError, RuntimeError):
    """A custom operator returns another size or dtype than its fake kernel says. It is noticed when
    a program runs for the first time, and by `lostwax.check`.

    What to do: correct the function that is registered with `torch.library.register_fake`, and
    export again.
    """


class InputStructureError(LostwaxError, TypeError):
    """A program was called with another structure of arguments than the one it was captured with;
    or an example call does not fit the function that is exported.

    Containers are part of a program: how many arguments, which keys, which types. The message shows
    both structures and the first place where they differ. `path` is that place, as Python.

    What to do: call the module as it was called at capture; or capture it again with these
    arguments. For an example call: pass what the function's signature asks for.
    """

    def __init__(self, message: str, path: str = "") -> None:
        self.path = path
        super().__init__(message)


class InputValueError(LostwaxError, ValueError):
    """An argument stands in the right place, but is not what the program was captured for: it has
    another size, dtype, device or value, or it overlaps another argument in memory.

    Sizes that were not declared dynamic, and Python numbers, strings and the like, are baked into
    the program. `path` is the argument, as Python.

    What to do: pass what the message says was expected; or capture again, with the declaration
    that the message proposes (`dynamic_shapes`) or that value passed as a tensor.
    """

    def __init__(self, message: str, path: str = "") -> None:
        self.path = path
        super().__init__(message)


class SettingsError(LostwaxError, RuntimeError):
    """torch has a setting that a program, or a capture, cannot follow.

    Either a program is called under another autocast, default dtype or default device than it was
    captured with; or a module that is being captured sets what kernels read when they run
    (`torch.backends`, determinism).

    What to do: set it around the export, or around the program's call, as the message says.
    """


class InputTypeError(LostwaxError, TypeError):
    """An argument or a result is of a type that a program cannot have: neither a leaf (tensor,
    number, bool, str, dtype, layout, memory format, device, None) nor a known container.

    `path` is the argument, as Python.

    What to do: for a dataclass, `lostwax.register_dataclass(cls)`; for another class,
    `torch.utils._pytree.register_pytree_node`.
    """

    def __init__(self, message: str, path: str = "") -> None:
        self.path = path
        super().__init__(message)


class DynamicShapesError(LostwaxError, ValueError):
    """What was written for `dynamic_shapes`, `constraints` or a `Dim` does not fit the example
    call, or contradicts itself.

    `path` is the argument, as Python; it is empty if the error is not about one argument.

    What to do: the message names the argument, what was given and what was expected, and shows a
    spec that would do.
    """

    def __init__(self, message: str, path: str = "") -> None:
        self.path = path
        super().__init__(message)


class ConstraintViolationError(LostwaxError, ValueError):
    """The program does not hold for all sizes that were declared.

    The message lists each dimension that cannot vary as declared: the condition, the user's line, a
    size at which the program would be wrong, and the declarations to write instead. `fixes` holds
    these declarations one by one. `dynamic_shapes` is the whole spec with the fixes in it, and
    `constraints` lists all relations: those that were stated, and those that no Dim can express.

    What to do: paste the fixes; or export again with
    `refine_dynamic_shapes_from_suggested_fixes(error, dynamic_shapes)` and `error.constraints`; or
    change the line that the guard comes from, so that it does not ask for the size.
    """

    def __init__(
        self,
        message: str,
        fixes: tuple[Any, ...] = (),
        dynamic_shapes: Any = None,
        constraints: tuple[str, ...] = (),
    ) -> None:
        self.fixes, self.dynamic_shapes = fixes, dynamic_shapes
        self.constraints = list(constraints)
        super().__init__(message)


class RegistrationError(LostwaxError, ValueError):
    """A class cannot be registered as a container: it is not a dataclass, or it is registered
    already under another name.

    What to do: decorate it with `@dataclasses.dataclass`; or register another kind of class with
    `torch.utils._pytree.register_pytree_node`.
    """


class NotPickledError(LostwaxError, pickle.PicklingError):
    """A program, or its module, was about to be pickled. The types of its values and their origin
    would be lost.

    What to do: `lostwax.save(program, path)` and `lostwax.load(path)`; copies are made with `copy`.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} cannot be pickled: types of values and their origin would be lost\n"
            "  instead: lostwax.save(program, path) and lostwax.load(path)"
        )


class NotCallableError(LostwaxError, RuntimeError):
    """An ExportedProgram was called. It is data, and has no state of its own to run with.

    What to do: `program.module()` gives an `nn.Module` to call, move and train.
    """


class VerificationError(LostwaxError, ValueError):
    """A program breaks rules of the IR specification. Each line of the message names the node, the
    rule and what is wrong; `violations` holds them.

    What to do: look for the mistake in the pass that changed the graph last, or in whatever wrote
    the file that the program comes from.
    """

    def __init__(self, message: str, violations: tuple[object, ...] = ()) -> None:
        self.violations = violations
        super().__init__(message)


class SharedStateError(LostwaxError, ValueError):
    """Programs whose modules were to share one state (`lostwax.modules`) have different tensors by
    one name, or one tensor by names that do not belong together: they were exported from different
    modules, or loaded from different files.

    What to do: export them from one module object, or save them in one file and load that.
    """


class SaveError(LostwaxError, ValueError):
    """A program holds something that a `.pt2` file cannot hold, or what was to be saved is no
    program. Nothing was written: a file that was there before is as it was.

    What to do: the message names the place, and says what to change there.
    """


class LoadError(LostwaxError, ValueError):
    """A file is not a `.pt2` archive or a `.pte` file, is damaged, was made by a version that is
    not known, or holds something that this process does not have: an operator or a class of
    arguments.

    Nothing of the file was run. `where` says what was being read, from the outside in.

    What to do: import the library that registers the operator or class, then load again; write the
    file anew if it is damaged.
    """

    def __init__(self, message: str, where: tuple[str, ...] = ()) -> None:
        self.message, self.where = message, where
        super().__init__(message + "".join(f"\n  while reading {place}" for place in where[::-1]))


class CaptureError(LostwaxError, RuntimeError):
    """The module does something that a functional graph cannot do again: it sets a seed, keeps a
    tensor for its next call to change, leaves gradients behind, writes to memory that overlaps.

    What to do: the message names the line of the module, the reason, and what to write instead.
    """


class StrictError(CaptureError):
    """`export(strict=True)` refuses what the module's Python does beside its tensors: it leaves an
    object otherwise than it was, reads the clock, a file, random numbers or the environment, or
    gives another program when it is captured again.

    What to do: the message names what it is, and the line. Pass such a value as an argument, keep
    it in a buffer, or export without `strict=True`, which warns instead.
    """


class UnknownModuleError(LostwaxError, ValueError):
    """A path that should name a submodule names none. `path` is that path.

    What to do: write it as `module.named_modules()` does, "layers.0.attention".
    """

    def __init__(self, message: str, path: str = "") -> None:
        self.path = path
        super().__init__(message)


class DecompositionError(LostwaxError, ValueError):
    """An entry of a table of decompositions cannot replace its operator: it raises, or what it
    returns has another size, another dtype, or another number of outputs. `operator` is the one
    that it was meant for.

    What to do: let the function return what the operator returns; or keep the operator whole,
    `table.keep(op)`.
    """

    def __init__(self, message: str, operator: object = None) -> None:
        self.operator = operator
        super().__init__(message)


class LoweringError(LostwaxError, ValueError):
    """A program cannot be lowered: to the Edge dialect, or to an executable. It has an operator
    that no kernel computes, a dtype that no kernel takes, a size without an upper bound, or does
    something that an executable cannot do.

    What to do: the message names the line of the module, the reason, and what to write instead.
    """

    @classmethod
    def at(cls, what: str, where: str, *, why: str = "", instead: str) -> Self:
        """The error about a line of the user's module."""
        at = f"\n  at {where}" if where else ""
        because = f"\n  why: {why}" if why else ""
        return cls(f"{what}.{at}{because}\n  instead: {instead}")


class JointError(LostwaxError, ValueError):
    """A module cannot be captured together with its backward: it is not clear which result to
    differentiate, or none of them has a gradient.

    What to do: name the loss, `loss_index=0` or `loss=lambda result: ...`; or ask for the gradients
    of all results against incoming ones, `tangents=True`.
    """


class CheckError(LostwaxError, AssertionError):
    """A program does not do what its module does, or there was nothing to compare them with. The
    message is the report of `lostwax.check`: the case, the first node that differs, and code that
    shows it.

    What to do: run the code. If the module's own Python changes with the size (`if x.shape[0] >
    3`), capture each branch for itself; if it draws random numbers from Python or numpy, pass them
    in. Otherwise it is a fault of lostwax: please report it with the code.
    """


class SwapError(LostwaxError, RuntimeError):
    """A module of an unflattened program cannot run alone, or cannot be exchanged for another.

    Modules hand each other values that are no arguments: a tensor that one of them wrote to, a
    weight of another one. The message names the value.

    What to do: run the whole unflattened module; or exchange a larger module, inside which such
    values stay.
    """


class NotYetError(LostwaxError, NotImplementedError):
    """A part of the interface is planned, and not built yet.

    What to do: the message says what to write until then.
    """

    def __init__(self, what: str, instead: str, *, why: str = "", where: str = "") -> None:
        at = f"\n  at {where}" if where else ""
        because = f"\n  why: {why}" if why else ""
        super().__init__(f"{what} is not supported yet.{at}{because}\n  until then: {instead}")


class PassError(LostwaxError, ValueError):
    """A pass cannot run, or returned something that is no program.

    The message names the pass, and the rule or property that is broken; `name` is the pass,
    `violations` are the rules that the result breaks.

    What to do: put a pass that requires a property after one that ensures it. If a pass breaks a
    rule, correct the pass: the message names the node.
    """

    def __init__(self, message: str, name: str = "", violations: tuple[object, ...] = ()) -> None:
        self.name, self.violations = name, violations
        super().__init__(message)


def asks_data(error: BaseException | None) -> bool:
    """Did Python's control flow ask what only data can answer? Python itself refuses a symbolic
    truth as an index."""
    if isinstance(error, TypeError):
        return str(error).endswith("must be integers or slices, not SymBool")
    while error is not None and not getattr(error, "is_question", False):
        error = error.__cause__
    return error is not None


def find_own_error(error: BaseException | None) -> BaseException | None:
    """The error of the house's, or the question, over which the user's code has raised another
    exception: in a `finally`, in a handler, where a `with` ends."""
    while error is not None and not type(error).__module__.startswith("lostwax."):
        error = error.__cause__ or error.__context__
    return error
