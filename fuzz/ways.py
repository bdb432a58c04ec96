"""The ways from a module to something that can be called in its place.

Each is a function of an `Exported`; what it raises is the judge's affair. Must not know what is
compared.
"""

from __future__ import annotations

import copy
import io
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import lostwax
from lostwax import passes
from lostwax.errors import LostwaxError
from lostwax.ir.program import ExportedProgram


class NotCopied(LostwaxError):
    """Eager cannot copy the module either."""


@dataclass
class Exported:
    """A program with what it was captured from."""

    subject: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    dynamic: dict[str, Any] | None
    seed: int
    program: ExportedProgram


def spec(names: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What varies, as `dynamic_shapes` says it: by position, then by name."""
    said: dict[str, list[int]] = names["DYNAMIC"]
    if not said:
        return None
    dims = {a: dict.fromkeys(d, lostwax.Dim.AUTO) for a, d in said.items()}
    function = names.get("forward") or names["Random"].forward
    code = function.__code__
    own = list(code.co_varnames[: code.co_argcount])[0 if "forward" in names else 1 :]
    return {a: dims.get(a) for a in own if len(args) + len(kwargs) >= len(own)}


def export(
    subject: Any, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic: Any, seed: int
) -> Exported:
    program = lostwax.export(subject, args, kwargs, dynamic_shapes=dynamic)
    program.validate()
    return Exported(subject, args, kwargs, dynamic, seed, program)


def _copied(e: Exported) -> Any:
    try:
        copied = copy.deepcopy(e.subject)
    except RuntimeError as error:  # of tensors that have a history, eager can have no copy
        raise NotCopied(str(error)) from error
    # Torch's copy of a module parts parameters that share memory; that of a program does not.
    memories = [
        len({t.untyped_storage().data_ptr() for t in tensors_of(m)}) for m in (e.subject, copied)
    ]
    if e.seed % 2 or memories[0] != memories[1]:
        return copy.deepcopy(e.program).module()
    return copy.deepcopy(e.program.module())


_PASSES: tuple[Callable[[], Any], ...] = (
    passes.NoOps, passes.CommonSubexpressions, passes.DeadCode, passes.RuntimeAssertions,
)  # fmt: skip


def _passed(e: Exported) -> Any:
    rng = random.Random(e.seed)
    chosen = tuple(p() for p in rng.sample(_PASSES, rng.randint(1, len(_PASSES))))
    return passes.Pipeline(chosen)(e.program).module()


def _folded(e: Exported) -> Any:
    return passes.Pipeline((passes.ConstantFolding(), passes.FoldBatchNorm()))(e.program).module()


def _file(e: Exported) -> io.BytesIO:
    file = io.BytesIO()
    lostwax.save(e.program, file)
    file.seek(0)
    return file


def _saved(e: Exported) -> Any:
    loaded = lostwax.load(_file(e))
    loaded.validate()
    return loaded.module()


def _again(e: Exported) -> Any:
    module = e.program.module()
    return lostwax.export(module, e.args, e.kwargs, dynamic_shapes=e.dynamic).module()


def _torch(e: Exported) -> Any:
    return torch.export.load(_file(e)).module()


WAYS: dict[str, Callable[[Exported], Any]] = {
    "module": lambda e: e.program.module(),
    "decomposed": lambda e: e.program.run_decompositions().module(),
    "passes": _passed,
    "folded": _folded,
    "saved": _saved,
    "unflattened": lambda e: lostwax.unflatten(e.program),
    "copied": _copied,
    "again": _again,
    "torch": _torch,
}
CAPTURED = "captured"
"""The way that takes the module itself, and follows what becomes of it."""


def tensors_of(subject: Any) -> list[Tensor]:
    """All tensors that a module holds, also in attributes and lists."""
    return list(held_tensors(subject).values())


def held_tensors(subject: Any) -> dict[str, Tensor]:
    """The same, by the places that hold them."""
    found: dict[str, Any] = {}
    for path, module in subject.named_modules() if isinstance(subject, nn.Module) else ():
        held = {**module._parameters, **module._buffers, **module.__dict__}
        for name, value in held.items():
            items = enumerate(value) if isinstance(value, (list, tuple)) else [("", value)]
            for key, each in value.items() if isinstance(value, dict) else items:
                found[f"{path}.{name}[{key}]"] = each
    return {place: value for place, value in found.items() if isinstance(value, Tensor)}
