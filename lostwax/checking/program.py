"""One call of a program and of its module, which both run on copies.

Must not change the module or the program.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._library.custom_ops import CustomOpDef
from torch.utils import _pytree as pytree

from lostwax.checking.calls import DrawnCall
from lostwax.checking.first_node import compare_nodes
from lostwax.checking.result import Close, Refusal, state_values
from lostwax.checking.untouched import leave_untouched
from lostwax.errors import CheckError, InputStructureError, InputValueError
from lostwax.ir.program import ExportedProgram
from lostwax.ir.pytree import leaf_paths, sketch
from lostwax.ir.run.module import call_convention
from lostwax.ops.registry import has_trait
from lostwax.ops.traits import Trait

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


class ProgramCase:
    """One call of both the program and the module."""

    def __init__(
        self, program: ExportedProgram, module: Any, seed: int, close: Close, call: DrawnCall
    ) -> None:
        self.program, self.module, self.call = program, module, call
        self.seed, self.close = seed, close
        self.ending = "torch.testing.assert_close(program.module()(*args, **kwargs), expected)"
        """The last lines of a counterexample, which show the difference."""

    def code(self) -> str:
        return "\n".join(
            [
                "import copy, torch",
                "from torch.utils._pytree import tree_flatten, tree_unflatten",
                self.call.code,
                "again = copy.deepcopy((module, args, kwargs))",
                f"torch.manual_seed({self.seed})",
                "expected = again[0](*again[1], **again[2])",
                f"torch.manual_seed({self.seed})",
                self.ending,
            ]
        )

    def find_difference(self) -> str:
        """What differs, in words; "" if nothing does."""
        ours, theirs = self.program.module(), copy_callable(self.module)
        got_in, want_in = self._copy_inputs(), self._copy_inputs()
        got, want = self._run_seeded(ours, got_in), self._run_original(theirs, want_in)
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
        """Raise `Refusal` if the program says itself that it does not hold here: by an error
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
            raise Refusal(text.splitlines()[0])

    def _copy_inputs(self) -> Inputs:
        return copy.deepcopy((self.call.args, self.call.kwargs))

    def _run_seeded(self, function: Callable[..., Any], inputs: Inputs) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            try:
                return function(*inputs[0], **inputs[1])
            except Exception as error:
                return error

    def _run_original(self, function: Callable[..., Any], inputs: Inputs) -> Any:
        """The module's copy, or the function, which has none."""
        with leave_untouched(function):
            return self._run_seeded(function, inputs)

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

    def find_first_node(self) -> str:
        module = copy_callable(self.module)
        call = partial(self._run_original, module, self._copy_inputs())
        beside = compare_nodes(self.program, _modules(module), call, self.close)
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


def _root_module(module: Any) -> nn.Module | None:
    """The module, or the one whose method this is; None for a function."""
    root = module if isinstance(module, nn.Module) else getattr(module, "__self__", None)
    return root if isinstance(root, nn.Module) else None


def copy_callable(module: Any) -> Any:
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
