"""`patch_torch_export`: code that calls `torch.export` captures with lostwax meanwhile, as it is
written.

Two functions are replaced, those that capture, and they give torch's own class: everything else of
`torch.export`, and whoever takes its programs, is as it was. Must not replace classes: a module
that is imported meanwhile keeps what it finds.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ContextDecorator, contextmanager
from functools import wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any

from torch.utils._pytree import tree_map_only

from lostwax import errors
from lostwax.cache import PerClass
from lostwax.capture.draft import draft_export
from lostwax.capture.export import export
from lostwax.interop.exchange import to_torch
from lostwax.interop.training import restore_batch_norms
from lostwax.ir.program import ExportedProgram

if TYPE_CHECKING:
    import torch.export


def _give_torch(
    capture: Callable[..., ExportedProgram],
) -> Callable[..., torch.export.ExportedProgram]:
    """A function that captures, as torch's: it keeps the operators that torch keeps, gives torch's
    class and raises its errors."""

    @wraps(capture)
    def capture_for_torch(
        mod: Any,
        args: Any,
        kwargs: Mapping[str, Any] | None = None,
        *,
        dynamic_shapes: Any = None,
        **options: Any,
    ) -> torch.export.ExportedProgram:
        from torch.export.dynamic_shapes import AdditionalInputs, ShapesCollection, _IntWrapper

        shapes = dynamic_shapes
        if isinstance(shapes, ShapesCollection):  # it has the ints that it tells by their wrappers
            shapes = shapes.dynamic_shapes(mod, args, kwargs)
            args, kwargs = tree_map_only(_IntWrapper, lambda each: each.val, (args, kwargs))
        # torch's `strict` says how it traces; ours would refuse what torch's does not mind
        options = {"keep": "composite", **options, "strict": False}
        with _errors_of_torch():
            program = capture(mod, args, kwargs, dynamic_shapes=shapes, **options)
            made = to_torch(program)
        restore_batch_norms(made)
        if isinstance(shapes, AdditionalInputs):
            shapes.verify(made)
        if (report := vars(program).get("_report")) is not None:
            vars(made)["_report"] = report
        return made

    return capture_for_torch


_OURS = {each.__name__: _give_torch(each) for each in (export, draft_export)}


# ------------------------------------------------------------------------------------------ errors


@contextmanager
def _errors_of_torch() -> Iterator[None]:
    """Let errors of ours be torch's, too, so that what is written for those catches them."""
    try:
        yield
    except errors.LostwaxError as error:
        ours: Any = type(error)
        error.__class__ = _BOTH[ours]
        raise


def _make_both(ours: Any) -> Any:
    """The class of ours that is torch's `UserError` as well."""
    from torch._dynamo.exc import UserError, UserErrorType

    if issubclass(ours, UserError):
        return ours
    kinds = {
        errors.ConstraintViolationError: UserErrorType.CONSTRAINT_VIOLATION,
        errors.DataDependentError: UserErrorType.DYNAMIC_CONTROL_FLOW,
        errors.CaptureError: UserErrorType.ANTI_PATTERN,
    }
    kind = next((v for k, v in kinds.items() if issubclass(ours, k)), UserErrorType.INVALID_INPUT)
    members = {"error_type": kind, "__module__": ours.__module__, "__doc__": ours.__doc__}
    return type(ours.__name__, (ours, UserError), members)


_BOTH = PerClass(__name__, "errors that are torch's, too", _make_both)


# ------------------------------------------------------------------------------------------ blocks


class _Patch:
    """The names of torch's that are replaced while any block lasts. Blocks of several threads may
    begin and end in any order: the last that ends puts torch's names back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks: set[object] = set()
        self._before: dict[str, Any] = {}

    def enter(self, module: ModuleType, block: object) -> None:
        with self._lock:
            if not self._blocks:
                self._before = {name: vars(module)[name] for name in _OURS}
            self._blocks.add(block)
            vars(module).update(_OURS)

    def leave(self, module: ModuleType, block: object) -> None:
        """End a block, also one that an interrupt kept from beginning."""
        with self._lock:
            self._blocks.discard(block)
            if not self._blocks:
                vars(module).update(self._before)


_PATCH = _Patch()


@contextmanager
def _hold_patch() -> Iterator[None]:
    import torch.export

    block = object()
    try:
        _PATCH.enter(torch.export, block)
        yield
    finally:
        _PATCH.leave(torch.export, block)


class _Patching(ContextDecorator):
    """What `with` takes, or decorates a function. Dropped without either, it has done nothing, and
    says so."""

    _is_used = False

    def __call__(self, function: Any) -> Any:
        self._is_used = True
        return super().__call__(function)

    def _recreate_cm(self) -> Any:
        return _hold_patch()

    def __enter__(self) -> None:
        self._is_used = True
        self._held = _hold_patch()
        self._held.__enter__()

    def __exit__(self, *error: Any) -> bool | None:
        return self._held.__exit__(*error)

    def __del__(self) -> None:
        if not self._is_used and not sys.is_finalizing():
            warnings.warn(
                "patch_torch_export() alone does nothing\n"
                "  why: it holds for a block, and torch has its own names back after it\n"
                "  instead: with lostwax.patch_torch_export(): ...",
                stacklevel=2,
            )


def patch_torch_export() -> _Patching:
    """Let `torch.export.export` and `torch.export.draft_export` capture with lostwax, for a block
    of existing code. What they return is torch's own `ExportedProgram`, for `torch.export.save`
    and all others that take one.

    It holds for the whole process, all threads. Code that has imported a name before
    (`from torch.export import export`) keeps torch's; a module that is imported inside the block
    keeps ours. Composite operators stay whole, as with torch (`keep="composite"`); `strict`
    changes nothing: Python's own code runs, and is not checked more than without it. Errors are
    ours, and each is a `torch._dynamo.exc.UserError`, too.
    """
    return _Patching()
