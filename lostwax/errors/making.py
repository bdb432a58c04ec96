"""The errors of making a program: capture, sizes that vary, fake tensors."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, Self

from lostwax.errors.base import LostwaxError


class CaptureError(LostwaxError, RuntimeError):
    """The module does something that a functional graph cannot do again: it sets a seed, keeps a
    tensor for its next call to change, leaves gradients behind, writes to memory that overlaps.

    What to do: the message names the line of the module, the reason, and what to write instead.

    Example:

        def seeded(x):
            torch.manual_seed(0)
            return x + torch.rand(3)

        lostwax.export(seeded, (torch.ones(3),))

    Mended:

        def noisy(x, noise):
            return x + noise

        lostwax.export(noisy, (torch.ones(3), torch.rand(3)))
    """

    code = "LW0101"


class DataDependentError(LostwaxError, RuntimeError):
    """The program asks for the data of a tensor that has none, and the question can be no part of
    the program: Python needs a plain number, as in `[x] * int(n)`, or it branches, under
    `control_flow="refuse"`.

    Fake tensors know sizes, not values. `x.item()`, `x.nonzero()` and boolean masks give *unbacked*
    symbols: integers without an example value. Python's own `if` and loops on them become `cond`
    and `while_loop`, unless that is refused or cannot be done.

    What to do: state what you know before the line that asks, with `torch._check(n > 0)`; or
    compute with tensors (`torch.where`, `x.repeat`) instead of asking.

    Example:

        def clipped(x):
            return x if x.sum() > 0 else -x

        lostwax.export(clipped, (torch.ones(3),), control_flow="refuse")

    Mended:

        def clipped(x):
            return torch.where(x.sum() > 0, x, -x)

        lostwax.export(clipped, (torch.ones(3),), control_flow="refuse")
    """

    code = "LW0102"
    why = "a program is recorded once, for all data: meanwhile tensors have sizes, and no values"

    is_question = False
    """Does Python's control flow ask? Then it can be captured (`capture/flow/`)."""

    about: Any = None
    """What is asked: a condition or a number (`sym`)."""

    asked_by: Sequence[CodeType] = ()
    """The functions that run then, outermost first. (C may drop an error's traceback.)"""

    def ask(self, about: Any = None) -> Self:
        """Mark the error as a question of Python's control flow, about a value; return it."""
        self.is_question, self.about = True, about
        self.asked_by = [*_list_codes()]
        return self


def _list_codes() -> Iterator[CodeType]:
    frame: FrameType | None = sys._getframe(2)
    found = list[CodeType]()
    while frame is not None:
        found.append(frame.f_code)
        frame = frame.f_back
    return reversed(found)


class StrictError(CaptureError):
    """`export(strict=True)` refuses what the module's Python does beside its tensors: it leaves an
    object otherwise than it was, reads the clock, a file, random numbers or the environment, or
    gives another program when it is captured again.

    What to do: the message names what it is, and the line. Pass such a value as an argument, keep
    it in a buffer, or export without `strict=True`, which warns instead.

    Example:

        class Counting(torch.nn.Module):
            calls = 0

            def forward(self, x):
                self.calls += 1
                return x * self.calls

        lostwax.export(Counting(), (torch.ones(3),), strict=True)

    Mended:

        class Counting(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("calls", torch.zeros(()))

            def forward(self, x):
                self.calls += 1
                return x * self.calls

        lostwax.export(Counting(), (torch.ones(3),), strict=True)
    """

    code = "LW0103"


class JointError(LostwaxError, ValueError):
    """A module cannot be captured together with its backward: it is not clear which result to
    differentiate, or none of them has a gradient.

    What to do: name the loss, `loss_index=0` or `loss=lambda result: ...`; or ask for the gradients
    of all results against incoming ones, `tangents=True`.

    Example:

        layer = torch.nn.Linear(2, 2)
        lostwax.export_joint(layer, (torch.ones(3, 2),))

    Mended:

        lostwax.export_joint(layer, (torch.ones(3, 2),), loss=lambda result: result.mean())
    """

    code = "LW0104"
    why = "a backward starts at one number, the loss, or at gradients that come in"


class InputTypeError(LostwaxError, TypeError):
    """An argument or a result is of a type that a program cannot have: neither a leaf (tensor,
    number, bool, str, dtype, layout, memory format, device, None) nor a known container.

    `path` is the argument, as Python.

    What to do: for a dataclass, `lostwax.register_dataclass(cls)`; for another class,
    `torch.utils._pytree.register_pytree_node`.

    Example:

        class Batch:
            def __init__(self, rows):
                self.rows = rows

        def double(batch):
            return batch.rows * 2

        lostwax.export(double, (Batch(torch.ones(3)),))

    Mended:

        import dataclasses

        @dataclasses.dataclass
        class Rows:
            rows: torch.Tensor

        lostwax.register_dataclass(Rows)
        lostwax.export(double, (Rows(torch.ones(3)),))
    """

    code = "LW0105"
    why = "a program takes and gives tensors and plain values, alone or in containers"

    def __init__(self, message: str, path: str = "") -> None:
        self.path = path
        super().__init__(message)


class UnknownModuleError(LostwaxError, ValueError):
    """A path that should name a submodule names none. `path` is that path.

    What to do: write it as `module.named_modules()` does, "layers.0.attention".

    Example:

        model = torch.nn.Sequential(torch.nn.Linear(2, 2))
        call = (torch.ones(3, 2),)
        lostwax.export(model, call, preserve_module_call_signature=["1"])

    Mended:

        lostwax.export(model, call, preserve_module_call_signature=["0"])
    """

    code = "LW0106"

    def __init__(self, message: str, path: str = "") -> None:
        self.path = path
        super().__init__(message)


class RegistrationError(LostwaxError, ValueError):
    """A class cannot be registered as a container: it is not a dataclass, or it is registered
    already under another name.

    What to do: decorate it with `@dataclasses.dataclass`; or register another kind of class with
    `torch.utils._pytree.register_pytree_node`.

    Example:

        class Pair:
            first: torch.Tensor
            second: torch.Tensor

        lostwax.register_dataclass(Pair)

    Mended:

        import dataclasses

        lostwax.register_dataclass(dataclasses.dataclass(Pair))
    """

    code = "LW0107"


class SettingsError(LostwaxError, RuntimeError):
    """torch has a setting that a program, or a capture, cannot follow.

    Either a program is called under another autocast, default dtype or default device than it was
    captured with; or a module that is being captured sets what kernels read when they run
    (`torch.backends`, determinism).

    What to do: set it around the export, or around the program's call, as the message says.

    Example:

        program = lostwax.export(torch.nn.Linear(2, 2), (torch.ones(3, 2),))
        with torch.autocast("cpu", torch.bfloat16):
            program.module()(torch.ones(3, 2))

    Mended:

        with torch.autocast("cpu", torch.bfloat16):
            program = lostwax.export(torch.nn.Linear(2, 2), (torch.ones(3, 2),))
            program.module()(torch.ones(3, 2))
    """

    code = "LW0108"


class NotYetError(LostwaxError, NotImplementedError):
    """A part of the interface is planned, and not built yet.

    What to do: the message says what to write until then.

    Example:

        relu = lostwax.export(torch.relu, (torch.ones(3),))
        relu.run_decompositions(decompose_custom_triton_ops=True)

    Mended:

        relu.run_decompositions(decompose_custom_triton_ops=False)
    """

    code = "LW0109"

    def __init__(self, what: str, instead: str, *, why: str = "", where: str = "") -> None:
        at = f"\n  at {where}" if where else ""
        because = f"\n  why: {why}" if why else ""
        super().__init__(f"{what} is not supported yet.{at}{because}\n  until then: {instead}")


class ConstraintViolationError(LostwaxError, ValueError):
    """The program does not hold for all sizes that were declared.

    The message lists each dimension that cannot vary as declared: the condition, the user's line, a
    size at which the program would be wrong, and the declarations to write instead. `fixes` holds
    these declarations one by one, `violations` what asked for them. `dynamic_shapes` is the whole
    spec with the fixes in it, and `constraints` lists all relations: those that were stated, and
    those that no Dim can express.

    What to do: paste the fixes; or export again with
    `refine_dynamic_shapes_from_suggested_fixes(error, dynamic_shapes)` and `error.constraints`; or
    change the line that the guard comes from, so that it does not ask for the size.

    Example:

        def pairs(x):
            return x.view(2, -1)

        n = lostwax.Dim("n")
        lostwax.export(pairs, (torch.ones(8),), dynamic_shapes={"x": {0: n}})

    Mended:

        half = lostwax.Dim("half")
        lostwax.export(pairs, (torch.ones(8),), dynamic_shapes={"x": {0: 2 * half}})
    """

    code = "LW0201"

    def __init__(
        self,
        message: str,
        fixes: tuple[Any, ...] = (),
        dynamic_shapes: Any = None,
        constraints: tuple[str, ...] = (),
        violations: tuple[Any, ...] = (),
    ) -> None:
        self.fixes, self.dynamic_shapes = fixes, dynamic_shapes
        self.constraints = list(constraints)
        self.violations = violations
        super().__init__(message)


class DynamicShapesError(LostwaxError, ValueError):
    """What was written for `dynamic_shapes`, `constraints` or a `Dim` does not fit the example
    call, or contradicts itself.

    `path` is the argument, as Python; it is empty if the error is not about one argument.

    What to do: the message names the argument, what was given and what was expected, and shows a
    spec that would do.

    Example:

        def double(x):
            return x * 2

        rows = lostwax.Dim("rows")
        lostwax.export(double, (torch.ones(3),), dynamic_shapes={"y": {0: rows}})

    Mended:

        lostwax.export(double, (torch.ones(3),), dynamic_shapes={"x": {0: rows}})
    """

    code = "LW0202"
    why = (
        "dynamic_shapes has the form of the arguments, with a Dim, a name and a range, for each "
        "size that varies"
    )

    def __init__(self, message: str, path: str = "") -> None:
        self.path = path
        super().__init__(message)


class ConstantsError(LostwaxError, ValueError):
    """What was written for `constants` does not fit the example call: it names no input, or one
    whose value cannot be read, or one that `dynamic_shapes` lets vary.

    `path` is the input, as Python.

    What to do: the message lists the inputs. Name an argument, `"grid"`, or a part of one,
    `"batch['grid']"`; its value in the example is the one that calls must have.

    Example:

        def rows(x, lengths):
            return [part.sum() for part in x.split(lengths.tolist())]

        call = (torch.ones(5), torch.tensor([2, 3]))
        lostwax.export(rows, call, constants={"length"})

    Mended:

        lostwax.export(rows, call, constants={"lengths"})
    """

    code = "LW0205"
    why = (
        "constants names inputs whose values never change, so that Python may compute with them: "
        "grids of patches, lengths, positions"
    )

    def __init__(self, message: str, path: str = "") -> None:
        self.path = path
        super().__init__(message)


class ContradictionError(LostwaxError, RuntimeError):
    """Two facts about sizes exclude each other: no input can satisfy both.

    What to do: the message names the condition. One `torch._check` before it, or one declared
    range, is too narrow.

    Example:

        env = lostwax.ShapeEnv()
        env.symbol("rows", hint=3, lo=8, hi=64)

    Mended:

        env.symbol("rows", hint=3, lo=1, hi=64)
    """

    code = "LW0203"


class ParseError(LostwaxError, ValueError):
    """A text that should be an integer expression is not one.

    `text` is the whole text, `position` the index of the character where reading stopped.

    What to do: correct the text at the position that the message points to. Known are integers,
    names, `+ - * // %`, comparisons, `and`, `or`, `not`, `min` and `max`.

    Example:

        from lostwax.sym.text.parse import parse

        rows = lostwax.ShapeEnv().symbol("rows", hint=16)
        parse("rows ^ 8", {"rows": rows})

    Mended:

        parse("rows * 8", {"rows": rows})
    """

    code = "LW0204"

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

    Example:

        mode = lostwax.FakeTensorMode()
        fake = mode.from_tensor(torch.ones(3))
        fake.numpy()

    Mended:

        torch.ones(3).numpy()
    """

    code = "LW0301"
    why = "while a program is recorded, tensors have sizes and dtypes, and no data"


class NonFakeInputError(LostwaxError, RuntimeError):
    """A real tensor met an operator under a FakeTensorMode that does not convert real tensors by
    itself.

    What to do: convert it first, `mode.from_tensor(x)`; or build the mode with
    `FakeTensorMode(allow_non_fake_inputs=True)`.

    Example:

        weight = torch.ones(3)
        mode = lostwax.FakeTensorMode()
        with mode:
            torch.zeros(3) + weight

    Mended:

        with mode:
            torch.zeros(3) + mode.from_tensor(weight)
    """

    code = "LW0302"


class MixedModeError(LostwaxError, RuntimeError):
    """Fake tensors of two different FakeTensorModes met in one operator.

    What to do: make all of them under one mode; `mode.from_tensor(other)` makes a fake of a fake.

    Example:

        mode = lostwax.FakeTensorMode()
        a = mode.from_tensor(torch.ones(3))
        b = lostwax.FakeTensorMode().from_tensor(torch.ones(3))
        a + b

    Mended:

        a + mode.from_tensor(b)
    """

    code = "LW0303"


class MissingFakeRuleError(LostwaxError, RuntimeError):
    """Nothing is known of what an operator returns: no rule, no `register_fake`, no decomposition,
    no meta kernel.

    What to do: register one with `torch.library.register_fake("ns::op")`.

    Example:

        library = torch.library.Library("mine", "DEF")
        library.define("twice(Tensor x) -> Tensor")
        fake = lostwax.FakeTensorMode().from_tensor(torch.ones(3))
        torch.ops.mine.twice(fake)

    Mended:

        @torch.library.register_fake("mine::twice")
        def twice_fake(x):
            return torch.empty_like(x)

        torch.ops.mine.twice(fake)
    """

    code = "LW0304"
    why = "while a program is recorded no kernel runs, and it goes on with what it would return"
    operator: Any = None
    """The operator that it is of."""


class WrongFakeError(LostwaxError, RuntimeError):
    """A custom operator returns another size or dtype than its fake kernel says. It is noticed when
    a program runs for the first time, and by `lostwax.check`.

    What to do: correct the function that is registered with `torch.library.register_fake`, and
    export again.

    Example:

        @torch.library.custom_op("mine::turn", mutates_args=())
        def turn(x: torch.Tensor) -> torch.Tensor:
            return x.t().clone()

        @turn.register_fake
        def turn_fake(x):
            return torch.empty_like(x)

        program = lostwax.export(turn, (torch.ones(2, 3),))
        program.module()(torch.ones(2, 3))

    Mended:

        @torch.library.custom_op("mine::turned", mutates_args=())
        def turned(x: torch.Tensor) -> torch.Tensor:
            return x.t().clone()

        @turned.register_fake
        def turned_fake(x):
            return x.new_empty(x.shape[1], x.shape[0])

        program = lostwax.export(turned, (torch.ones(2, 3),))
        program.module()(torch.ones(2, 3))
    """

    code = "LW0305"
