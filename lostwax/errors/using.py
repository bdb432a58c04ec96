"""The errors of what is done with a program: calls, passes, checks, lowering, files."""

from __future__ import annotations

import pickle
from typing import Self

from lostwax.errors.base import LostwaxError


class InputStructureError(LostwaxError, TypeError):
    """A program was called with another structure of arguments than the one it was captured with;
    or an example call does not fit the function that is exported.

    Containers are part of a program: how many arguments, which keys, which types. The message shows
    both structures and the first place where they differ. `path` is that place, as Python.

    What to do: call the module as it was called at capture; or capture it again with these
    arguments. For an example call: pass what the function's signature asks for.

    Example:

        program = lostwax.export(torch.nn.Linear(2, 2), (torch.ones(3, 2),))
        run = program.module()
        run([torch.ones(3, 2)])

    Mended:

        run(torch.ones(3, 2))
    """

    code = "LW0401"
    why = "a program is captured for calls of one form, which the example shows"

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

    Example:

        layer = torch.nn.Linear(2, 2)
        program = lostwax.export(layer, (torch.ones(3, 2),))
        program.module()(torch.ones(4, 2))

    Mended:

        rows = {"input": {0: lostwax.Dim("rows")}}
        program = lostwax.export(layer, (torch.ones(3, 2),), dynamic_shapes=rows)
        program.module()(torch.ones(4, 2))
    """

    code = "LW0402"
    why = (
        "a program holds for calls like the example's, but for the sizes that dynamic_shapes "
        "declares"
    )

    def __init__(self, message: str, path: str = "") -> None:
        self.path = path
        super().__init__(message)


class NotCallableError(LostwaxError, RuntimeError):
    """An ExportedProgram was called. It is data, and has no state of its own to run with.

    What to do: `program.module()` gives an `nn.Module` to call, move and train.

    Example:

        program = lostwax.export(torch.relu, (torch.ones(3),))
        program(torch.ones(3))

    Mended:

        program.module()(torch.ones(3))
    """

    code = "LW0403"
    why = "its graph takes the weights as arguments, too"


class SharedStateError(LostwaxError, ValueError):
    """Programs whose modules were to share one state (`lostwax.modules`) have different tensors by
    one name, or one tensor by names that do not belong together: they were exported from different
    modules, or loaded from different files.

    What to do: export them from one module object, or save them in one file and load that.

    Example:

        def export(layer):
            return lostwax.export(layer, (torch.ones(1, 2),))

        lostwax.modules({name: export(torch.nn.Linear(2, 2)) for name in "ab"})

    Mended:

        layer = torch.nn.Linear(2, 2)
        lostwax.modules({name: export(layer) for name in "ab"})
    """

    code = "LW0404"


class SwapError(LostwaxError, RuntimeError):
    """A module of an unflattened program cannot run alone, or cannot be exchanged for another.

    Modules hand each other values that are no arguments: a tensor that one of them wrote to, a
    weight of another one. The message names the value.

    What to do: run the whole unflattened module; or exchange a larger module, inside which such
    values stay.

    Example:

        class Doubles(torch.nn.Module):
            def forward(self, x):
                x.mul_(2)  # the caller reads this
                return x + 1

        class Outer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = Doubles()

            def forward(self, x):
                y = x + 0
                return self.inner(y) + y

        def swap(outer):
            call = (torch.ones(3),)
            program = lostwax.export(outer, call, preserve_module_call_signature=["inner"])
            modules = lostwax.unflatten(program)
            modules.inner = torch.nn.Identity()
            return modules(*call)

        swap(Outer())

    Mended:

        class Whole(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = Outer()

            def forward(self, x):
                return self.inner(x)

        swap(Whole())
    """

    code = "LW0405"


class SplitError(LostwaxError, ValueError):
    """A program cannot be cut into stages there: a path names no module of it or one inside of a
    loop, the order is another, or what one stage writes another one reads.

    What to do: name other modules in `at`, as the message says.

    Example:

        layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
        program = lostwax.export(layers, (torch.ones(3, 2),))
        lostwax.split(program, at=["2", "1"])

    Mended:

        lostwax.split(program, at=["1", "2"])
    """

    code = "LW0505"


class VerificationError(LostwaxError, ValueError):
    """A program breaks rules of the IR specification. Each line of the message names the node, the
    rule and what is wrong; `violations` holds them.

    What to do: look for the mistake in the pass that changed the graph last, or in whatever wrote
    the file that the program comes from.

    Example:

        program = lostwax.export(torch.relu, (torch.ones(3),))
        (call,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
        call.target = torch.relu
        program.validate()

    Mended:

        call.target = torch.ops.aten.relu.default
        program.validate()
    """

    code = "LW0501"
    why = "a program is checked against the rules of its dialect whenever one is made or changed"
    instead = "compute it, at the line that is named, by what the rule allows"

    def __init__(self, message: str, violations: tuple[object, ...] = ()) -> None:
        self.violations = violations
        super().__init__(message)


class DecompositionError(LostwaxError, ValueError):
    """An entry of a table of decompositions cannot replace its operator: it raises, or what it
    returns has another size, another dtype, or another number of outputs. `operator` is the one
    that it was meant for.

    What to do: let the function return what the operator returns; or keep the operator whole,
    `table.keep(op)`.

    Example:

        program = lostwax.export(torch.nn.SiLU(), (torch.ones(3),))
        silu = torch.ops.aten.silu.default
        program.run_decompositions({silu: lambda x: (x * x.sigmoid()).double()})

    Mended:

        program.run_decompositions({silu: lambda x: x * x.sigmoid()})
    """

    code = "LW0502"
    why = "it is called with the arguments of the operator, and takes its place"

    def __init__(self, message: str, operator: object = None) -> None:
        self.operator = operator
        super().__init__(message)


class PassError(LostwaxError, ValueError):
    """A pass cannot run, or returned something that is no program.

    The message names the pass, and the rule or property that is broken; `name` is the pass,
    `violations` are the rules that the result breaks.

    What to do: put a pass that requires a property after one that ensures it. If a pass breaks a
    rule, correct the pass: the message names the node.

    Example:

        class NeedsCore(lostwax.passes.Pass):
            requires = ("core-aten",)

            def edit(self, draft):
                pass

        program = lostwax.export(torch.nn.Linear(2, 2), (torch.ones(3, 2),))
        lostwax.Pipeline((NeedsCore(),))(program)

    Mended:

        lostwax.Pipeline((NeedsCore(),))(program.run_decompositions())
    """

    code = "LW0503"
    why = "a pipeline calls its passes one after another, and verifies the program after each"

    def __init__(self, message: str, name: str = "", violations: tuple[object, ...] = ()) -> None:
        self.name, self.violations = name, violations
        super().__init__(message)


class CheckError(LostwaxError, AssertionError):
    """A program does not do what its module does, or there was nothing to compare them with. The
    message is the report of `lostwax.check`: the case, the first node that differs, and code that
    shows it.

    What to do: run the code. If the module's own Python changes with the size (`if x.shape[0] >
    3`), capture each branch for itself; if it draws random numbers from Python or numpy, pass them
    in. Otherwise it is a fault of lostwax: please report it with the code.

    Example:

        scale = {"by": 2.0}

        def scaled(x):
            return x * scale["by"]

        program = lostwax.export(scaled, (torch.ones(3),))
        scale["by"] = 3.0
        lostwax.check(program, scaled).raise_on_difference()

    Mended:

        def scaled(x, by):
            return x * by

        program = lostwax.export(scaled, (torch.ones(3), torch.tensor(2.0)))
        lostwax.check(program, scaled).raise_on_difference()
    """

    code = "LW0504"


class LoweringError(LostwaxError, ValueError):
    """A program cannot be lowered: to the Edge dialect, or to an executable. It has an operator
    that no kernel computes, a dtype that no kernel takes, a size without an upper bound, or does
    something that an executable cannot do.

    What to do: the message names the line of the module, the reason, and what to write instead.

    Example:

        def export(batch):
            layer, call = torch.nn.Linear(4, 2), (torch.ones(3, 4),)
            return lostwax.export(layer, call, dynamic_shapes=({0: batch},))

        export(lostwax.Dim("batch")).to_edge().to_executable()

    Mended:

        export(lostwax.Dim("batch", max=64)).to_edge().to_executable()
    """

    code = "LW0601"
    why = "what runs on a device is chosen before it runs: kernels, memory, backends"

    @classmethod
    def at(cls, what: str, where: str, *, why: str = "", instead: str) -> Self:
        """The error about a line of the user's module."""
        at = f"\n  at {where}" if where else ""
        because = f"\n  why: {why}" if why else ""
        return cls(f"{what}.{at}{because}\n  instead: {instead}")


class OnnxError(LoweringError):
    """A program cannot be written as an ONNX model. It has operators that ONNX has no form for, a
    call of one that its form does not cover, or a dtype that no runtime computes with. Nothing was
    written.

    What to do: operators that are missing are listed all at once, with their lines, and so are
    calls that cannot be written. Say how an operator is written,
    `@lostwax.onnx.translation("mylib::scale")`, or leave it to the runtime as an operator of a
    domain of yours, `lostwax.onnx.leave_to_runtime("mylib::scale", domain="mine")`.

    Example:

        def solve(a, b):
            return torch.linalg.solve(a, b)

        lostwax.export(solve, (torch.eye(2), torch.ones(2))).to_onnx()

    Mended:

        def solve(a, b):
            (p, q), (r, s) = a
            return torch.stack([s * b[0] - q * b[1], p * b[1] - r * b[0]]) / (p * s - q * r)

        lostwax.export(solve, (torch.eye(2), torch.ones(2))).to_onnx()
    """

    code = "LW0602"
    why = "a model holds operators of ONNX, or of a domain that its runtime knows"


class SaveError(LostwaxError, ValueError):
    """A program holds something that a `.pt2` file cannot hold, or what was to be saved is no
    program. Nothing was written: a file that was there before is as it was.

    What to do: the message names the place, and says what to change there.

    Example:

        import io

        layer = torch.nn.Linear(2, 2)
        lostwax.save(layer, io.BytesIO())

    Mended:

        lostwax.save(lostwax.export(layer, (torch.ones(3, 2),)), io.BytesIO())
    """

    code = "LW0701"
    why = "a file holds graphs, weights and plain values"


class LoadError(LostwaxError, ValueError):
    """A file is not a `.pt2` archive or a `.pte` file, is damaged, was made by a version that is
    not known, or holds something that this process does not have: an operator or a class of
    arguments.

    Nothing of the file was run. `where` says what was being read, from the outside in.

    What to do: import the library that registers the operator or class, then load again; write the
    file again if it is damaged.

    Example:

        import io

        lostwax.load(io.BytesIO(b"no archive"))

    Mended:

        file = io.BytesIO()
        lostwax.save(lostwax.export(torch.relu, (torch.ones(3),)), file)
        file.seek(0)
        lostwax.load(file)
    """

    code = "LW0702"
    why = "a program is loaded whole or not at all; nothing in a file is run, or guessed"
    instead = "copy or download the file again, or save the program again"

    def __init__(self, message: str, where: tuple[str, ...] = ()) -> None:
        self.message, self.where = message, where
        super().__init__(message + "".join(f"\n  while reading {place}" for place in where[::-1]))


class NotPickledError(LostwaxError, pickle.PicklingError):
    """A program, or its module, was about to be pickled. The types of its values and their origin
    would be lost.

    What to do: `lostwax.save(program, path)` and `lostwax.load(path)`; copies are made with `copy`.

    Example:

        import io
        import pickle

        program = lostwax.export(torch.relu, (torch.ones(3),))
        pickle.dumps(program)

    Mended:

        lostwax.save(program, io.BytesIO())
    """

    code = "LW0703"

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} cannot be pickled: types of values and their origin would be lost\n"
            "  instead: lostwax.save(program, path) and lostwax.load(path)"
        )


class CommandError(LostwaxError, ValueError):
    """The command line names something that is not there, or asks for what does not go together: a
    file, a module, a factory, an input, a backend. A factory that returns something else than a
    module and its example inputs is one, too.

    What to do: the message says what was looked for, and what is there. `lostwax COMMAND --help`
    lists the options.

    Example:

        import pathlib
        from lostwax.cli.models.factories import build_model

        code = "import torch; tiny = lambda: (torch.nn.Linear(4, 2), torch.ones(3, 4))"
        pathlib.Path("/tmp/nets.py").write_text(code)
        build_model("/tmp/nets.py:tidy")

    Mended:

        build_model("/tmp/nets.py:tiny")
    """

    code = "LW0801"
