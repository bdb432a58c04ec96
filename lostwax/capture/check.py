"""`check`: compares a program with its module, at the example and at other sizes for which the
program claims to hold.

If they differ, it runs the program again node by node, and compares each value with that of the
module's own operators, to name the first that differs. Must not change the module or the program.
"""

from __future__ import annotations

import copy
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch._library.custom_ops import CustomOpDef
from torch._ops import OpOverload
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from lostwax.capture.check_inputs import DrawnCall, draw_calls, example_call
from lostwax.capture.steps.provenance import Provenance
from lostwax.doors import enter
from lostwax.errors import CheckError, InputStructureError, InputValueError
from lostwax.ir.program import ExportedProgram, check_is_program
from lostwax.ir.pytree import leaf_paths, sketch
from lostwax.ir.run.module import call_convention
from lostwax.ir.signature import InputKind
from lostwax.ir.text import shorten_trace, source_text, target_text, type_text
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait
from lostwax.undo.undo import Undo, run_and_undo

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
Close = Callable[[Any, Any], str]
"""Says what is wrong with a value, compared with the expected one; "" if nothing is."""


@dataclass(frozen=True)
class Difference:
    """A case in which the program does not do what the module does."""

    case: str
    what: str
    node: str
    """The first node that differs, with its source line; "" if none was found."""
    counterexample: str
    """Python code that shows the difference between `program` and `module`."""
    sides: tuple[str, str] = ("program", "module")

    def __str__(self) -> str:
        one, other = self.sides
        lines = [f"the {one} differs from the {other}", f"  case: {self.case}", f"  {self.what}"]
        if self.node:
            lines.append(f"  the first node that differs: {self.node}")
        lines.append("  counterexample:")
        return "\n".join([*lines, *(f"    {line}" for line in self.counterexample.split("\n"))])


@dataclass(frozen=True)
class CheckResult:
    """What `check` found. It is true if something was compared and nothing differs."""

    agreed: tuple[str, ...]
    refused: tuple[str, ...] = ()
    """The cases that the program itself refused, and why: it does not claim to hold for them."""
    differences: tuple[Difference, ...] = field(default=())
    sides: tuple[str, str] = ("program", "module")

    @property
    def ok(self) -> bool:
        """Something was compared, and nothing differs."""
        return bool(self.agreed) and not self.differences

    @property
    def report(self) -> str:
        lines = [str(d) for d in self.differences]
        if not self.agreed and not self.differences:
            lines.append("nothing was compared")
        one, other = self.sides
        lines += [f"the {one} agrees with the {other}: {case}" for case in self.agreed]
        return "\n".join([*lines, *(f"the {one} refuses: {case}" for case in self.refused)])

    def raise_on_difference(self) -> None:
        """Raise a `CheckError` with the report, unless `ok`."""
        if not self.ok:
            raise CheckError(self.report)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return self.report

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from lostwax.ir.notebook import show_code

        return show_code(self.report)


def check(
    program: ExportedProgram | Any,
    module: nn.Module | Callable[..., Any] | None = None,
    inputs: Sequence[Any] | None = None,
    *,
    draws: int = 8,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    method: str = "forward",
    on_case: Callable[[str], None] | None = None,
) -> CheckResult:
    """Compare a program with the module that it was captured from.

    With `inputs`, a list of argument tuples or of pairs `(args, kwargs)`, both run with these;
    otherwise with the example, and with up to `draws` other sizes from the program's ranges, small
    and odd ones first. Compared are results, and what is written to inputs and buffers; tolerances
    are those of `torch.testing.assert_close`. Both run on copies. The first case that differs ends
    the check. `on_case` is called with the title of each case before it runs.

    Of programs in the Edge dialect, lowered or not, the `method` is compared. An executable is run
    by the ExecuTorch runtime, twice for each case, and its `method` compared with the module, or if
    there is none with the program that it was lowered from; the bar is 1e-4 of the largest value.
    If a delegate differs, its backend is asked again, to find the operator inside.
    """
    if not isinstance(program, ExportedProgram):
        chosen = {"draws": draws, "rtol": rtol, "atol": atol, "seed": seed, "on_case": on_case}
        return _check_executable(program, module, inputs, method, chosen)
    if module is None:
        raise CheckError("a program is compared with its module\n  instead: check(program, module)")
    agreed: list[str] = []
    refused: list[str] = []
    for case in list_cases(program, inputs, draws, seed, on_case):
        run = _Case(program, module, case, seed, make_close(rtol, atol))
        try:
            what = run.find_difference()
        except _RefusalError as refusal:
            refused.append(f"{case.title}: {refusal}")
            continue
        if what:
            found = Difference(case.title, what, run.find_first_node(), run.code())
            return CheckResult(tuple(agreed), tuple(refused), (found,))
        agreed.append(case.title)
    return CheckResult(tuple(agreed), tuple(refused))


def _check_executable(
    executable: Any,
    module: Any,
    inputs: Any,
    method: str,
    chosen: dict[str, Any],
) -> CheckResult:
    if isinstance(executable, enter("EdgeProgramManager")):
        program = executable.exported_program(method)
        return check(program, module, inputs, **chosen)
    if not isinstance(executable, enter("ExecutableProgram")):
        check_is_program(executable, "check")
    found: CheckResult = enter("check_executable")(
        executable, module, inputs, method=method, **chosen
    )
    return found


def list_cases(
    program: ExportedProgram,
    inputs: Sequence[Any] | None,
    draws: int,
    seed: int,
    on_case: Callable[[str], None] | None = None,
) -> Iterable[DrawnCall]:
    """The calls that are compared; each is told before it is made."""
    for case in _make_cases(program, inputs, draws, seed):
        if on_case is not None:
            on_case(case.title)
        yield case


def _make_cases(
    program: ExportedProgram, inputs: Sequence[Any] | None, draws: int, seed: int
) -> Iterable[DrawnCall]:
    if inputs is not None:
        for i, given in enumerate(inputs):
            if isinstance(inputs, torch.Tensor) or not isinstance(given, (tuple, list)):
                raise CheckError(
                    "inputs is a list of calls, each a tuple of arguments\n"
                    "  instead: check(program, module, inputs=[(x, y)])"
                )
            args, kwargs = given if _is_pair(given) else (tuple(given), {})
            yield DrawnCall(f"inputs[{i}]", args, kwargs, f"args, kwargs = {_pair_text(given, i)}")
        return
    if program.example_inputs is None:
        raise CheckError(
            "the program has no example inputs, it was loaded without them\n"
            "  instead: check(program, module, inputs=[(x, y)])"
        )
    yield example_call(program.example_inputs)
    convention = call_convention(program, True)
    yield from draw_calls(convention, program.example_inputs, draws, seed)


def _is_pair(given: Any) -> bool:
    return len(given) == 2 and isinstance(given[0], tuple) and isinstance(given[1], dict)


def _pair_text(given: Any, index: int) -> str:
    return f"inputs[{index}]" if _is_pair(given) else f"tuple(inputs[{index}]), {{}}"


# ----------------------------------------------------------------------------------------- one case


class _RefusalError(Exception):
    """The program says that it does not hold for these arguments."""


class _Case:
    """One call of both the program and the module."""

    def __init__(
        self, program: ExportedProgram, module: Any, case: DrawnCall, seed: int, close: Close
    ) -> None:
        self.program, self.module, self.case = program, module, case
        self.seed, self.close = seed, close
        self.ending = "torch.testing.assert_close(program.module()(*args, **kwargs), expected)"
        """The last lines of a counterexample, which show the difference."""

    def code(self) -> str:
        return "\n".join(
            [
                "import copy, torch",
                "from torch.utils._pytree import tree_flatten, tree_unflatten",
                self.case.code,
                "again = copy.deepcopy((module, args, kwargs))",
                f"torch.manual_seed({self.seed})",
                "expected = again[0](*again[1], **again[2])",
                f"torch.manual_seed({self.seed})",
                self.ending,
            ]
        )

    def find_difference(self) -> str:
        """What differs, in words; "" if nothing does."""
        ours, theirs = self.program.module(), _copy_callable(self.module)
        got_in, want_in = self._copy_inputs(), self._copy_inputs()
        got, want = self._run_seeded(ours, got_in), self._run_seeded(theirs, want_in)
        if isinstance(got, Exception):
            self._check_refusal(got)
        if isinstance(got, Exception) or isinstance(want, Exception):
            both = isinstance(got, Exception) and isinstance(want, Exception)
            return "" if both else _describe_errors(got, want)
        wrong = self._compare_trees("the result", got, want)
        if wrong:
            return wrong
        wrong = self._compare_trees("the arguments afterwards, (args, kwargs)", got_in, want_in)
        if wrong:
            self.ending = (
                "program.module()(*args, **kwargs)\n"
                "torch.testing.assert_close((args, kwargs), again[1:])"
            )
            return wrong
        return self._compare_buffers(ours, theirs)

    def _check_refusal(self, error: Exception) -> None:
        """Raise `_RefusalError` if the program says itself that it does not hold here: by an error
        of its call, or by an assertion about data in the graph."""
        asserted = [
            text
            for n in self.program.graph.nodes
            if has_trait(n.target, Trait.ASSERTS)
            for text in n.args
            if isinstance(text, str)
        ]
        text = str(error)
        if isinstance(error, (InputValueError, InputStructureError)) or any(
            a and a in text for a in asserted
        ):
            raise _RefusalError(text.splitlines()[0])

    def _copy_inputs(self) -> Inputs:
        return copy.deepcopy((self.case.args, self.case.kwargs))

    def _run_seeded(self, function: Callable[..., Any], inputs: Inputs) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            try:
                return function(*inputs[0], **inputs[1])
            except Exception as error:
                return error

    def _compare_trees(self, name: str, got: Any, want: Any) -> str:
        ours, spec = pytree.tree_flatten(got)
        theirs, expected = pytree.tree_flatten(want)
        if spec != expected:
            return f"{name} is {sketch(got)} instead of {sketch(want)}"
        for path, a, b in zip(leaf_paths(spec, name), ours, theirs, strict=True):
            if wrong := self.close(a, b):
                return f"{path}: {wrong}"
        return ""

    def _compare_buffers(self, ours: nn.Module, theirs: Any) -> str:
        """What differs in the buffers that the program or the module has written."""
        known, before = dict(ours.named_buffers()), _buffers_of(self.module)
        written = set(self.program.graph_signature.buffers_to_mutate.values())
        for name, want in _buffers_of(theirs).items():
            if name in known and (name in written or not _is_identical(want, before.get(name))):
                wrong = self.close(known[name], want)
                if wrong:
                    theirs = (
                        "again[0]" if isinstance(self.module, nn.Module) else "again[0].__self__"
                    )
                    self.ending = (
                        "ours = program.module()\nours(*args, **kwargs)\n"
                        f"torch.testing.assert_close(ours.get_buffer({name!r}), "
                        f"{theirs}.get_buffer({name!r}))"
                    )
                    return f"the buffer {name} afterwards: {wrong}"
        return ""

    # ---- where the difference begins

    def find_first_node(self) -> str:
        """The first node whose value is not what the module computes there."""
        modules = _modules(module := _copy_callable(self.module))
        paths = {id(m): path for path, m in modules.items()}
        read_lines = _choose_lines(self.program)
        recorder = _ValueRecorder(paths, read_lines)

        def record(undo: Undo) -> None:
            recorder.provenance.catch_calls(list(modules.values()), undo)
            with recorder.provenance.watch_calls(sys._getframe()), recorder:
                self._run_seeded(module, self._copy_inputs())

        run_and_undo(record)
        beside = _ComparingInterpreter(self.program, recorder.values, self.close, read_lines)
        args, kwargs = self._copy_inputs()
        inputs = call_convention(self.program, True).bind(args, kwargs)
        self._run_seeded(beside.run, ((*state_values(self.program), *inputs), {}))
        return beside.found


def _describe_errors(got: Any, want: Any) -> str:
    sides = (("the program", got), ("the module", want))
    return "; ".join(
        f"{name} raises {type(x).__name__}: {str(x).splitlines()[0] if str(x) else ''}"
        if isinstance(x, Exception)
        else f"{name} does not"
        for name, x in sides
    )


def state_values(program: ExportedProgram) -> list[Any]:
    held = {**program.constants, **program.state_dict}
    specs = program.graph_signature.input_specs
    return [held.get(s.target or "") for s in specs if s.kind is not InputKind.USER_INPUT]


def _root_module(module: Any) -> nn.Module | None:
    """The module, or the one whose method this is; None for a function."""
    root = module if isinstance(module, nn.Module) else getattr(module, "__self__", None)
    return root if isinstance(root, nn.Module) else None


def _copy_callable(module: Any) -> Any:
    """Copy the module with its state. Operators are functions, and stay the same."""
    held = [value for each in _modules(module).values() for value in vars(each).values()]
    operators = [value for value in held if isinstance(value, CustomOpDef)]
    try:
        return copy.deepcopy(module, {id(each): each for each in operators})
    except Exception as error:  # of any class: what an object's own copy raises
        raise CheckError(
            f"the module cannot be copied: {_name_uncopied(module)}: "
            f"{type(error).__name__}: {error}\n"
            "  why: the module and the program run apart, so that neither sees what the other "
            "writes\n"
            "  instead: give the class of that object a __deepcopy__ (`return self` if nothing "
            "writes to it), or keep it outside of the module"
        ) from error


def _name_uncopied(module: Any) -> str:
    """Name the first attribute that has no copy."""
    for path, each in _modules(module).items():
        for name, value in vars(each).items():
            if name == "_modules":
                continue
            try:
                copy.deepcopy(value)
            except Exception:
                return f"its {path + '.' if path else ''}{name} is a {type(value).__name__}"
    return f"it is a {type(module).__name__}"


def _modules(module: Any) -> dict[str, nn.Module]:
    root = _root_module(module)
    return dict(root.named_modules()) if root is not None else {}


def _buffers_of(module: Any) -> dict[str, torch.Tensor]:
    root = _root_module(module)
    return dict(root.named_buffers()) if root is not None else {}


def _is_identical(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    return b is not None and a.dtype is b.dtype and torch.equal(a, b)


def make_close(rtol: float | None, atol: float | None) -> Close:
    def close(got: Any, want: Any) -> str:
        if not isinstance(got, torch.Tensor) or not isinstance(want, torch.Tensor):
            same = got is want or (type(got) is type(want) and bool(got == want))
            return "" if same else f"it is {_describe(got)} instead of {_describe(want)}"
        if got.shape != want.shape or got.dtype != want.dtype:
            return f"it is {type_text(got)} instead of {type_text(want)}"
        try:
            torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError as error:
            return _shorten_message(str(error))
        return ""

    return close


def _describe(value: Any) -> str:
    return type_text(value) or repr(value)


def _shorten_message(text: str) -> str:
    """The first lines of a message of `assert_close`, which have the numbers, as one line."""
    lines = [line.strip() for line in text.split("\n")]
    return "; ".join([line for line in lines if line][:3])


# -------------------------------------------------------------------------------- node by node


Key = tuple[str, str, str, int]
"""The call of a module, the user's lines, the operator, and a number if there are several."""


class _ValueRecorder(TorchDispatchMode):
    """Keeps the values that the module's operators return, by where they are called."""

    def __init__(self, paths: Mapping[int, str], read_lines: Callable[[str], str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.provenance, self.read_lines = Provenance(paths), read_lines
        self.values: dict[Key, Any] = {}
        self._count: Counter[tuple[str, str, str]] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        meta: dict[str, Any] = {}
        self.provenance.place_at(sys._getframe(1)).describe(func, meta)
        call = next(reversed(meta["nn_module_stack"]), "")
        key = (call, self.read_lines(meta["stack_trace"]), _operator_name(func))
        kept = pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), out)
        self.values[*key, self._count[key]] = kept
        self._count[key] += 1
        return out


def _choose_lines(program: ExportedProgram) -> Callable[[str], str]:
    """What of a stack trace we compare with a program's nodes: those of a file may have but the
    innermost line, or nothing (`save(..., metadata=...)`), and folders of another machine, or
    relative to another working directory."""
    traces = {_node_trace(n) for n in program.graph.nodes if n.op == "call_function"}
    if not any(traces):
        return lambda trace: ""
    is_short = all(shorten_trace(t) == t for t in traces)

    def read_lines(trace: str) -> str:
        return _FOLDERS.sub('File "', shorten_trace(trace) if is_short else trace)

    return read_lines


_FOLDERS = re.compile(r'File "[^"\n]*/')


class _ComparingInterpreter(Interpreter):
    """Runs the program's graph and compares each node with what the module computed there."""

    def __init__(
        self,
        program: ExportedProgram,
        values: Mapping[Key, Any],
        close: Close,
        read_lines: Callable[[str], str],
    ) -> None:
        super().__init__(program.graph_module)
        self.values, self.close, self.read_lines = values, close, read_lines
        self.found = ""
        self._count: Counter[tuple[str, str, str]] = Counter()
        self._places: dict[tuple[str, str], list[Any]] = {}
        for (call, lines, *_), value in values.items():
            self._places.setdefault((call, lines), []).append(value)
        self._unknown: dict[Node, None] = {}
        """The nodes that we can compare with nothing that the module computed."""

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if n.op == "call_function" and not self.found:
            self._judge_node(n, value)
        return value

    def _judge_node(self, node: Node, value: Any) -> None:
        if not isinstance(node.target, OpOverload):
            if any(n in self._unknown for n in node.all_input_nodes):
                self._unknown[node] = None
            return
        key = (*self._place_of(node), _operator_name(node.target))
        want = self.values.get((*key, self._count[key]))
        self._count[key] += 1
        if "empty" in key[2]:
            return
        if want is None:
            if not any(
                self._find_difference(value, v) == ""
                for v in self._places.get(self._place_of(node), ())
            ):
                self._unknown[node] = None
        elif wrong := self._find_difference(value, want):
            self.found = self._describe_first(node, wrong)

    def _find_difference(self, value: Any, want: Any) -> str:
        pairs = zip(pytree.tree_leaves(value), pytree.tree_leaves(want), strict=False)
        return next((wrong for a, b in pairs if (wrong := self.close(a, b))), "")

    def _describe_first(self, node: Node, wrong: str) -> str:
        """The node where the difference begins: this one, unless it is computed from nodes that we
        could not compare. Then it is the last node on the first line of those."""
        before = self._unknown_before(node)
        known = [
            n
            for n in before
            if isinstance(n.target, OpOverload) and self._place_of(n) in self._places
        ]
        if known:
            node = [n for n in known if self._place_of(n) == self._place_of(known[0])][-1]
            wrong = "its value is none of those that the module computes there"
        where = f"\n    at {source_text(node)}" if source_text(node) else ""
        return f"{node.name} = {target_text(node.target)}{where}\n    {wrong}"

    def _place_of(self, node: Node) -> tuple[str, str]:
        """The call of a module in which a node stands, and the user's lines."""
        call = next(reversed(node.meta.get("nn_module_stack") or {}), "")
        return str(call), self.read_lines(_node_trace(node))

    def _unknown_before(self, node: Node) -> list[Node]:
        """The nodes that we could not compare and that this one is computed from, in order."""
        found: set[Node] = set()
        waiting = [node]
        while waiting:
            for each in waiting.pop().all_input_nodes:
                if each in self._unknown and each not in found:
                    found.add(each)
                    waiting.append(each)
        return [n for n in self._unknown if n in found]


def _node_trace(node: Node) -> str:
    return str(node.meta.get("stack_trace") or "")


def _operator_name(func: Any) -> str:
    """The operator's name, the same for its in-place and functional forms."""
    name = str(func._schema.name).rpartition("::")[2] if isinstance(func, OpOverload) else str(func)
    return name.removesuffix("_").removesuffix("_functional")
