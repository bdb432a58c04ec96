"""Every operator sample of torch's `op_db` run twice, eagerly and on fake tensors, and compared.

Eager execution is the oracle. Compared: the structure of the result; size, stride, storage offset,
dtype, device and layout of each tensor, results and arguments (an operator may change an argument's
metadata); which tensors share storage; which result *is* which argument; and, where eager raises,
that the fake raises the same class. What excuses a sample stands in `refusal` and `VALUE_ERRORS`;
what fails and is known to fail stands in exceptions.toml.

The fakes are behind the `Fakes` protocol, so that torch's own FakeTensorMode can be measured by the
same rule. Must not know how a fake comes to its answer. Symbolic sizes are in `resize.py`.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

from lostwax.branches import OUTERMOST

# Samples look through the stack, and there through all modules, for the unittest that they are made
# in. There is none; it took three quarters of the time of these tests.
for _module in (common_utils, core):  # which has the name, too
    _module.extract_test_fn = lambda: None  # type: ignore[attr-defined]

DTYPES = (torch.float32, torch.int64)
OUT_FORMS = ("out", "strided out", "resized out")
FORMS = ("call", "inplace", *OUT_FORMS)
GRADIENT = "gradient"


class Verdict(StrEnum):
    """How one sample went."""

    AGREES = "agrees"
    WRONG = "wrong"  # both ran and differ, or the fake raised by accident
    REFUSED = "refused"  # eager ran; the fake raised on purpose
    RAISES = "raises"  # both raise, the fake the same class or a subclass
    OTHER_CLASS = "other class"  # both raise, the fake another class
    SILENT = "silent"  # eager raises, the fake does not
    EXCUSED = "excused"  # only the data could have told
    SKIPPED = "skipped"  # outside what fakes model
    UNGUARDED = "unguarded"  # symbolic: eager raises at sizes that the guards admit
    SPECIALISED = "specialised"  # symbolic: right, but the guards admit no other size


FAILURES = frozenset({Verdict.WRONG, Verdict.REFUSED, Verdict.OTHER_CLASS, Verdict.SILENT})
ERRORS = frozenset({Verdict.RAISES, Verdict.OTHER_CLASS, Verdict.SILENT})


class Seen(NamedTuple):
    """What can be seen of a tensor, real or fake. Sizes of fakes may be symbolic expressions."""

    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    storage: int


class Fakes(Protocol):
    """One implementation of fake tensors, fresh for each sample."""

    refusals: tuple[type[BaseException], ...]

    def running(self) -> AbstractContextManager[Any]:
        """The mode under which the operator is called."""

    def fake(self, t: Tensor) -> Any:
        """The fake of a real tensor, with concrete sizes."""

    def seen(self, t: Any) -> Seen | str:
        """What is seen of a result; a text when it is no proper fake."""

    def read(self, size: Any, binding: dict[Any, int], want: int) -> int | None:
        """The value of a size that may be symbolic. A size that only data decide is bound to what
        eager found (`want`) if its bounds admit it, and None is returned if they do not."""


@dataclass(frozen=True)
class Call:
    """One Python call of an operator."""

    operator: str
    dtype: str
    form: str
    index: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    regex: str | None = None

    def __str__(self) -> str:
        parts = [show(a) for a in self.args] + [f"{k}={show(v)}" for k, v in self.kwargs.items()]
        return f"{self.operator}({', '.join(parts)}) [{self.form} {self.dtype} #{self.index}]"


@dataclass
class Run:
    """What a call did: its arguments as they are afterwards, and the result or the error."""

    inputs: list[Any]
    outputs: list[Any] = field(default_factory=list)
    structure: Any = None
    error: Exception | None = None


class Outcome(NamedTuple):
    """A verdict with what there is to say about it."""

    verdict: Verdict
    detail: str = ""
    worded: bool = True
    """For errors: the fake's text matches the pattern torch expects of eager's."""


# ----------------------------------------------------------------------------------------- samples


def operators() -> dict[str, Any]:
    """The OpInfos by their full names."""
    return {op.full_name: op for op in op_db}


def dtypes_of(op: Any, device: str = "cpu") -> tuple[torch.dtype, ...]:
    """float32 and int64 as supported; an operator that takes neither gets a dtype it takes."""
    found = tuple(d for d in DTYPES if op.supports_dtype(d, device))
    return found or tuple(sorted(op.supported_dtypes(device), key=str))[:1]


def calls(
    op: Any,
    dtype: torch.dtype,
    forms: tuple[str, ...] = FORMS,
    device: str = "cpu",
    few: int | None = None,
) -> Iterator[Call]:
    """Every sample of the operator, or a few of them, in every form it has."""
    torch.manual_seed(0)
    samples = [*enumerate(op.sample_inputs(device, dtype))]
    if few is not None and len(samples) > few:  # at random: they are often products of lists
        samples = sorted(random.Random(0).sample(samples, few), key=lambda each: each[0])
    for i, sample in samples:
        args = (sample.input, *sample.args)
        base = Call(op.full_name, name_of(dtype), "call", i, op.op, args, sample.kwargs)
        if "call" in forms:
            yield base
        if "inplace" in forms and inplace_applies(op, sample):
            yield Call(*_head(base, "inplace"), op.inplace_variant, args, sample.kwargs)
        if GRADIENT in forms and op.supports_autograd and dtype.is_floating_point:
            yield Call(*_head(base, GRADIENT), gradients_of(op.op), args, sample.kwargs)
        if op.supports_out and any(form in forms for form in OUT_FORMS):
            yield from out_calls(base, forms)


def inplace_applies(op: Any, sample: Any) -> bool:
    return (
        op.inplace_variant is not None
        and not sample.broadcasts_input
        and isinstance(sample.input, Tensor)
    )


def out_calls(base: Call, forms: tuple[str, ...]) -> Iterator[Call]:
    """The call with `out=`: fitting, fitting with gaps, and to be resized."""
    run = eagerly(base)
    if run.error is not None or not all(map(is_plain, run.outputs)):
        return
    for form, make in _OUT.items():
        if form in forms:
            out = pytree.tree_unflatten([make(t) for t in run.outputs], run.structure)
            if isinstance(out, tuple):
                out = tuple(out)
            yield Call(*_head(base, form), base.function, base.args, {**base.kwargs, "out": out})


def _fitting(t: Tensor) -> Tensor:
    return torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device)


def _gapped(t: Tensor) -> Tensor:
    return torch.empty((*t.shape, 2), dtype=t.dtype, device=t.device)[..., 0]


def _to_be_resized(t: Tensor) -> Tensor:
    return torch.empty(0, dtype=t.dtype, device=t.device)


_OUT = dict(zip(OUT_FORMS, (_fitting, _gapped, _to_be_resized), strict=True))


def _head(call: Call, form: str) -> tuple[str, str, str, int]:
    return call.operator, call.dtype, form, call.index


def gradients_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that returns the gradients of this one with respect to its floating arguments."""

    def gradients(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = pytree.tree_flatten((args, kwargs))
        leaves = [
            t.detach().requires_grad_() if isinstance(t, Tensor) and t.is_floating_point() else t
            for t in leaves
        ]
        inputs = [t for t in leaves if isinstance(t, Tensor) and t.requires_grad]
        args, kwargs = pytree.tree_unflatten(leaves, structure)
        outputs = [
            t
            for t in pytree.tree_leaves(function(*args, **kwargs))
            if isinstance(t, Tensor) and t.requires_grad
        ]
        ones = [torch.ones_like(t) for t in outputs]
        if not inputs or not outputs:
            return ()
        return torch.autograd.grad(outputs, inputs, ones, allow_unused=True)

    return gradients


def error_calls(op: Any, device: str = "cpu") -> Iterator[Call]:
    """The calls that torch itself lists as errors of the operator."""
    if op.error_inputs_func is None:
        return
    torch.manual_seed(0)
    for i, bad in enumerate(op.error_inputs(device)):
        s = bad.sample_input
        head = (op.full_name, "", "error", i)
        yield Call(*head, op.op, (s.input, *s.args), s.kwargs, bad.error_regex)


# ----------------------------------------------------------------------------------------- running


def copied(tree: Any) -> Any:
    """The same tensors with data of their own; identity, aliasing, strides and offsets are kept."""
    tensors: dict[int, Tensor] = {}
    storages: dict[int, Any] = {}

    def copy(t: Tensor) -> Tensor:
        if id(t) not in tensors:
            tensors[id(t)] = _copy(t, storages)
        return tensors[id(t)]

    return pytree.tree_map_only(Tensor, copy, tree)


def _copy(t: Tensor, storages: dict[int, Any]) -> Tensor:
    if not is_plain(t) or t.device.type not in ("cpu", "cuda"):
        return t.clone()
    storage = t.untyped_storage()
    if storage._cdata not in storages:
        storages[storage._cdata] = storage.clone()
    new = torch.empty(0, dtype=t.dtype, device=t.device)
    return new.set_(storages[storage._cdata], t.storage_offset(), t.shape, t.stride())  # type: ignore[call-overload,no-any-return]


def execute(function: Callable[..., Any], args: Any, kwargs: Any) -> Run:
    """Call it and keep what happened."""
    run = Run(pytree.tree_leaves((args, kwargs)))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            out = function(*args, **kwargs)
    except Exception as e:
        run.error = e
    else:
        run.outputs, run.structure = pytree.tree_flatten(out)
    return run


OUTERMOST.add(execute.__code__)  # what it catches, the operator does not


def eagerly(call: Call) -> Run:
    return execute(call.function, *copied((call.args, dict(call.kwargs))))


def on_fakes(call: Call, fakes: Fakes, convert: Callable[[Tensor], Any]) -> Run:
    """The call on fakes of its tensors."""
    args, kwargs = pytree.tree_map_only(Tensor, convert, (call.args, dict(call.kwargs)))
    with fakes.running():
        return execute(call.function, args, kwargs)


def is_plain(t: Any) -> bool:
    return type(t) in (Tensor, torch.nn.Parameter) and t.layout is torch.strided and not t.is_conj()


def judge(call: Call, fakes: Fakes) -> Outcome:
    """Run the call both ways with concrete sizes, and compare."""
    eager = eagerly(call)
    reason = beyond(eager)
    if reason:
        return Outcome(Verdict.SKIPPED, reason)
    try:
        got = on_fakes(call, fakes, fakes.fake)
    except fakes.refusals as e:  # the conversion itself refused
        got = Run([], error=e)  # type: ignore[arg-type]
    return verdict(call, eager, got, fakes)


def beyond(eager: Run) -> str:
    """Why a sample is outside what is modelled; empty if it is inside."""
    for t in (*eager.inputs, *eager.outputs):
        if isinstance(t, Tensor) and not is_plain(t):
            return f"{str(t.layout).removeprefix('torch.')} {type(t).__name__} is not modelled"
    if isinstance(eager.error, AssertionError) and "Jiterator" in str(eager.error):
        return "runs on CUDA only"
    return ""


def verdict(call: Call, eager: Run, got: Run, fakes: Fakes) -> Outcome:
    """Compare the two runs."""
    if eager.error is not None:
        return error_verdict(call, eager.error, got)
    if got.error is not None and "of out parameter (meta)" in str(got.error):
        return Outcome(
            Verdict.SKIPPED,
            "device= beside out=: torch's parser compares them, and to C++ a fake on a device that "
            "need not be there is on meta",
        )
    if got.error is not None:
        return refusal(eager, got.error, fakes)
    difference = Comparison(fakes).difference(eager, got)
    return Outcome(Verdict.WRONG, difference) if difference else Outcome(Verdict.AGREES)


def refusal(eager: Run, error: Exception, fakes: Fakes) -> Outcome:
    detail = text_of(error)
    if not isinstance(error, fakes.refusals):
        return Outcome(Verdict.WRONG, f"eager runs, the fake raises {detail}")
    if any(isinstance(v, (bool, int, float, complex)) for v in eager.outputs):
        return Outcome(Verdict.EXCUSED, "returns a Python value that only data decide")
    return Outcome(Verdict.REFUSED, detail)


def error_verdict(call: Call, error: Exception, got: Run) -> Outcome:
    if got.error is None:
        if value_error(error):
            return Outcome(Verdict.EXCUSED, f"the error lies in the data: {text_of(error)}")
        return Outcome(Verdict.SILENT, f"eager raises {text_of(error)}")
    worded = call.regex is None or re.search(call.regex, str(got.error)) is not None
    detail = f"eager raises {text_of(error)}; the fake {text_of(got.error)}"
    same = isinstance(got.error, type(error))
    return Outcome(Verdict.RAISES if same else Verdict.OTHER_CLASS, detail, worded)


VALUE_ERRORS: dict[str, str] = {
    r"index( -?\d+)? is out of bounds for dimension|tried to access index": "an index is data",
    r"sorter index out of range": "an index is data",
    r"index out of range in self|INDICES element is out of DATA bounds": "an index is data",
    r"[Tt]arget -?\d+ is out of bounds|[Tt]arget'? (is )?out of range": "a class index is data",
    r"segment_length >= 0|all rows of lengths": "lengths of segments are data",
    r"allocated size does not match required size": "numbers of repetitions are data",
    r"multinomial distribution|probability tensor contains": "probabilities are data",
    r"Pivots given to l(u|dl)_solve|pivots passed to lu_unpack": "pivots are data",
    r"linalg.lu_factor: .*U\[\d+,\d+\] is zero": "a property of the matrix",
    r"^ZeroDivisionError$": "an integer tensor holds a zero",
}
"""Errors that eager finds by reading data; a fake cannot raise them."""


def value_error(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, torch.linalg.LinAlgError) or any(
        re.search(p, text) for p in VALUE_ERRORS
    )


# --------------------------------------------------------------------------------------- comparing


class Comparison:
    """Compares one eager run with one fake run; symbols are read at `binding`."""

    def __init__(
        self,
        fakes: Fakes,
        binding: dict[Any, int] | None = None,
        *,
        exact: bool = True,
        aliasing: bool = True,
    ) -> None:
        self.fakes = fakes
        self.binding = {} if binding is None else binding
        self.exact = exact
        self.aliasing = aliasing

    def difference(self, eager: Run, got: Run) -> str:
        """The first difference in words; empty when there is none."""
        if eager.structure != got.structure:
            return f"structure: eager {eager.structure}, fake {got.structure}"
        want = [*eager.outputs, *eager.inputs]
        have = [*got.outputs, *got.inputs]
        names = [f"output {i}" for i in range(len(eager.outputs))]
        names += [f"argument {i}" for i in range(len(eager.inputs))]
        for name, w, h in zip(names, want, have, strict=True):
            found = self._leaf(w, h, name.startswith("argument"))
            if found:
                return f"{name} {found}"
        return self._sharing(want, have, names) if self.aliasing else ""

    def _leaf(self, want: Any, have: Any, argument: bool) -> str:
        if isinstance(want, Tensor):
            if not isinstance(have, Tensor):
                return f"eager a tensor, fake {type(have).__name__}"
            seen = self.fakes.seen(have)
            return seen if isinstance(seen, str) else self._tensor(see(want), seen)
        if argument or isinstance(have, _SYMBOLIC.get(type(want), ())):
            return ""
        # NaN is its own equal here.
        same = type(want) is type(have) and (want == have or repr(want) == repr(have))
        return "" if same else f"eager {want!r}, fake {have!r}"

    def _tensor(self, want: Seen, have: Seen) -> str:
        for what in ("dtype", "device", "layout"):
            w, h = getattr(want, what), getattr(have, what)
            if w != h:
                return f"{what}: eager {w}, fake {h}"
        if len(want.size) != len(have.size):
            return f"rank: eager {want.size}, fake {have.size}"
        # first: where data decide the offset, it tells most about them
        offset = self._values((have.offset,), (want.offset,))[0]
        size = self._values(have.size, want.size)
        if size != want.size:
            return f"size: eager {want.size}, fake {have.size}{_at(have.size, size)}"
        stride = self._values(have.stride, want.stride)
        if self._strides(want.size, want.stride, have) != self._strides(size, stride, have):
            return (
                f"stride: eager {want.stride}, fake {have.stride}{_at(have.stride, stride)}"
                f" for size {want.size}"
            )
        if offset != want.offset and (self._is_exact(have) or 0 not in want.size):
            return f"offset: eager {want.offset}, fake {have.offset}"
        return ""

    def _values(self, have: tuple[Any, ...], want: tuple[int, ...]) -> tuple[int | None, ...]:
        read, binding = self.fakes.read, self.binding
        return tuple(
            h if h.__class__ is int else read(h, binding, w)
            for h, w in zip(have, want, strict=True)
        )

    def _is_exact(self, have: Seen) -> bool:
        return self.exact and all(s.__class__ is int for s in (*have.size, *have.stride))

    def _strides(self, size: tuple[Any, ...], stride: tuple[Any, ...], have: Seen) -> Any:
        """Symbolically, strides of single elements and of empty tensors address nothing."""
        if self._is_exact(have):
            return stride
        if 0 in size:
            return ()
        return tuple(st for s, st in zip(size, stride, strict=True) if s != 1)

    def _sharing(self, want: list[Any], have: list[Any], names: list[str]) -> str:
        pairs = [
            (n, w, h) for n, w, h in zip(names, want, have, strict=True) if isinstance(w, Tensor)
        ]
        for i, (a, w, h) in enumerate(pairs):
            for b, v, g in pairs[:i]:
                if (w is v) != (h is g):
                    return f"{b} is {a}: eager {w is v}, fake {h is g}"
                shared = see(w).storage == see(v).storage
                if shared != (_storage(self.fakes, h) == _storage(self.fakes, g)):
                    return f"{b} shares storage with {a}: eager {shared}, fake {not shared}"
        return ""


_SYMBOLIC: dict[type, tuple[type, ...]] = {
    int: (torch.SymInt,),
    float: (torch.SymFloat,),
    bool: (torch.SymBool,),
}


def _storage(fakes: Fakes, t: Any) -> int:
    seen = fakes.seen(t)
    assert not isinstance(seen, str)
    return seen.storage


def _at(symbolic: tuple[Any, ...], values: tuple[Any, ...]) -> str:
    return "" if all(s.__class__ is int for s in symbolic) else f" = {values}"


def see(t: Tensor) -> Seen:
    """What is seen of a real tensor."""
    return Seen(
        tuple(t.shape),
        t.stride(),
        t.storage_offset(),
        t.dtype,
        t.device,
        t.layout,
        t.untyped_storage()._cdata,
    )


# ----------------------------------------------------------------------------------------- wording


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def show(value: Any) -> str:
    """An argument in few characters: `float32[3, 4]`."""
    if isinstance(value, Tensor):
        text = f"{name_of(value.dtype)}{list(value.shape)}"
        if value.layout is torch.strided and not value.is_contiguous():
            text += f" stride {value.stride()}"
        return text
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(show, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    return repr(value)


def text_of(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:200]}"
