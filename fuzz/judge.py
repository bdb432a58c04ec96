"""Is a way as eager? Several calls are made; what they return is kept and compared at the end.

    wrong    a result, an input, the state or what shares memory is not as in eager
    minor    a result does not require gradients, which in eager are zero or none
    bare     an error that is no error of lostwax's: an assertion, a KeyError, torch's own words
    refused  a clear error of lostwax's: no fault, but counted

Must not know how programs are made.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, nullcontext, redirect_stderr, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn

from fuzz import ways
from fuzz.program import Program, Script
from lostwax.errors import LostwaxError, VerificationError

ASSERTIONS = ("is required at", "Runtime assertion failed", "relies on them")
"""What assertions of a program's graph say: they are lostwax's, though torch raises them."""
TOLD = re.compile(r"baked in|→|->|keeps no such state")
"""Warnings of an export which say that a later call will not be as eager."""
WRITE = re.compile(r"\.\w+_\(| [-+*/|&]+= |\] = |out=")
"""Something is written in place."""
_UNBACKED = re.compile(r"\bu\d+\b")
"""The name of a size, or of another number, that depends on data."""
UNREAD = "torch.export.load will not read this file, or not run it"
UNCHECKED = "torch.export.load the program also runs where lostwax.load's refuses"
"""What `save` says of torch: that it will raise, and that later calls may not be as eager."""
OVERWRITTEN = "modified by an inplace operation"
"""What autograd says if something that a backward reads was written to since."""
Made = tuple[list[Any], list[Tensor], dict[str, Tensor]]
"""A call: its results, its inputs, the state after it."""
_OF_ALL_CALLS = ("gradients", "they share memory", "they do not share memory")
"""What is compared when all calls are made, and so concerns later ones."""
_LOOSE = ("torch", "folded")
"""Ways whose layouts, gradients and sharing are not ours to promise: what torch makes of a file,
and what is a constant since it was folded."""


@dataclass
class Finding:
    """What became of one program on one way."""

    way: str
    rank: str
    what: str
    """Of which sort: `result values`, `kept values`, `sharing`, the class of an error."""
    text: str
    call: int = -1
    error: BaseException | None = None

    @property
    def is_failure(self) -> bool:
        return self.rank in ("wrong", "bare")

    @property
    def signature(self) -> str:
        """The same for findings that are alike."""
        line = next(iter(self.text.splitlines()), "")
        if self.rank == "wrong":
            line = ""
        line = re.sub(r"'[^']*'|\"[^\"]*\"|\[[^\]]*\]|\([^)]*\)|-?\d+(\.\d+)?", "#", line)
        return f"{self.rank} {self.way}: {self.what} {line}"[:180].rstrip()


@dataclass
class Call:
    """One call in eager: what it left, copied at once."""

    structure: Any
    results: list[Any]
    copies: list[Any]
    inputs: list[Tensor]
    inputs_after: list[Tensor]
    state: dict[str, Tensor]
    state_after: dict[str, Tensor]
    state_live: dict[str, Tensor]
    held_after: dict[str, Tensor]
    """All that the module holds, also what is no state."""
    layout: Any
    gradients: Any


@dataclass
class Session:
    """Several calls in eager."""

    calls: list[Call] = field(default_factory=list)
    kept: list[list[Any]] = field(default_factory=list)
    """What the results are after the last call."""
    sharing: set[Any] = field(default_factory=set)
    """What shares memory by then."""
    rebound: set[str] = field(default_factory=set)
    """State that is another tensor by then."""
    writes: bool = False
    slopes: list[Tensor | None] | None = None
    """Gradients of all that the results depend on; nothing if eager cannot have them."""
    stopped: BaseException | None = None


def judge(script: Script, only: Iterable[str] | None = None) -> list[Finding]:
    """All ways, or some, of one program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Judging(script, None if only is None else set(only)).run()


class _Judging:
    def __init__(self, script: Script, only: set[str] | None) -> None:
        self.script = script
        self.program: Program = script.program
        self.only = only
        self.findings: list[Finding] = []
        self.told: list[str] = []
        self.said = ""
        """What `save` says of torch."""
        self.unbacked = False
        """Do sizes depend on data? Then layouts may, too."""
        self.reads_data = False
        """Does any number depend on data? Then what is asserted of it may not hold."""

    def run(self) -> list[Finding]:
        eager = in_eager(self.script, python=False)
        if not eager.calls:
            return [Finding("eager", "eager", type(eager.stopped).__name__, str(eager.stopped))]
        if self.only is None or self.only - {ways.CAPTURED}:
            self._exported(eager)
        if self.only is None or ways.CAPTURED in self.only:
            changed = any(c.python for c in self.program.changes)
            self._captured(in_eager(self.script, python=True) if changed else eager)
        return self.findings

    # ----------------------------------------------------------------------------------------- ways

    def _exported(self, eager: Session) -> None:
        names = self.script.fresh()
        subject = names["make"]()
        args, kwargs = names["inputs"](0)
        before = [(t, t.detach().clone()) for t in ways.tensors_of(subject)]
        dynamic = ways.spec(names, args, kwargs)
        try:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                exported = ways.export(subject, args, kwargs, dynamic, self.program.seed)
        except Exception as error:
            self._raised("export", error, -1)
            return
        finally:
            self._check_untouched("export", before)
        self.unbacked = any(str(s).startswith("u") for s in exported.program.range_constraints)
        self.reads_data = _reads_data(exported.program)
        self.told = [str(w.message) for w in told if TOLD.search(str(w.message))]
        for way, build in ways.WAYS.items():
            if self.only is not None and way not in self.only:
                continue
            if way == "folded" and self.program.changes:
                continue  # what was computed once does not follow
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                try:
                    module = build(exported)
                except Exception as error:
                    module = error
            self.said = " ".join([str(w.message) for w in said]) if way == "torch" else ""
            if isinstance(module, Exception):
                self._raised(way, module, -1)
                continue
            self._follow(way, module, eager, python=False)
            if self.program.changes:
                for tensor, value in before:
                    tensor.data.copy_(value)
            else:
                self._check_untouched(way, before)

    def _captured(self, eager: Session) -> None:
        import lostwax

        self.told, self.said = [], ""
        names = self.script.fresh()
        subject = names["make"]()
        self._follow(ways.CAPTURED, lostwax.capture(subject), eager, True, names, subject)

    def _check_untouched(self, way: str, before: list[tuple[Tensor, Tensor]]) -> None:
        for i, (tensor, value) in enumerate(before):
            if tensor.shape != value.shape or not _same(tensor, value):
                self._wrong(way, "the original changed", f"tensor {i} of the module", -1)
                return

    # ----------------------------------------------------------------------------------- following

    def _follow(
        self,
        way: str,
        module: Callable[..., Any],
        eager: Session,
        python: bool,
        names: dict[str, Any] | None = None,
        changed: Any = None,
    ) -> None:
        """Make the calls, and compare."""
        names = names or self.script.fresh()
        changed = module if changed is None else changed
        found = len(self.findings)
        kept: list[list[Any]] = []
        labels: list[Made] = []
        seen = 0
        for i, want in enumerate(eager.calls):
            try:
                _change(names, changed, i, python)
            except Exception as error:  # of something that only eager's Python has made
                self.findings.append(Finding(way, "refused", "no change", str(error), i, error))
                return
            args, kwargs = names["inputs"](i)
            try:
                with warnings.catch_warnings(record=True) as told, _quiet(way):
                    results, structure = pytree.tree_flatten(module(*args, **kwargs))
                self.told += [str(w.message) for w in told if TOLD.search(str(w.message))]
            except Exception as error:
                self._raised(way, error, i)
                if eager.writes or way == ways.CAPTURED or self.findings[-1].is_failure:
                    return  # eager has gone on; what cannot be captured will be refused again
                kept.append([])
                continue
            seen += 1
            _look_at_tensors(changed)
            state = state_of(changed)
            inputs = _tensors((args, kwargs))
            self._compare(way, i, want, eager.calls[0], results, structure, inputs, state)
            if way == ways.CAPTURED:
                self._compare_held(way, i, want, ways.held_tensors(changed))
            if self._failed(found):
                del self.findings[found + 1 :]  # what follows from the first is no news
                return
            kept.append(results)
            labels.append((results, inputs, state))
        self._compare_kept(way, eager, kept)
        if seen == len(eager.calls) and way not in _LOOSE and not self._failed(found):
            self._compare_sharing(way, eager, labels)
            self._compare_slopes(way, eager, labels)
        if len(self.findings) == found:
            self.findings.append(Finding(way, "right", "", ""))

    def _failed(self, found: int) -> bool:
        return any(f.is_failure for f in self.findings[found:])

    def _compare(
        self, way: str, i: int, want: Call, first: Call, results: list[Any], structure: Any,
        inputs: list[Tensor], state: dict[str, Tensor],
    ) -> None:  # fmt: skip
        if structure != want.structure or len(results) != len(want.copies):
            self._wrong(way, "structure", f"{structure} instead of {want.structure}", i)
            return
        exact = way not in _LOOSE and not self.unbacked and _laid_out_alike(want, first)
        grads = want.gradients == first.gradients and way not in _LOOSE
        for k, (got, copy) in enumerate(zip(results, want.copies, strict=True)):
            self._compare_values(way, f"result {k}", got, copy, i)
            if isinstance(got, Tensor) and isinstance(copy, Tensor):
                live = want.results[k]
                if exact and got.stride() != live.stride() and live.numel():
                    self._wrong(way, "strides", f"result {k}: {got.stride()} instead of "
                                f"{live.stride()}", i)  # fmt: skip
                if grads and got.requires_grad != copy.requires_grad:
                    minor = copy.requires_grad and not _has_slope(live, want)
                    self._wrong(way, "requires_grad", f"result {k}: {got.requires_grad}", i, minor)
        for k, (got, copy) in enumerate(zip(inputs, want.inputs_after, strict=True)):
            self._compare_values(way, f"input {k}", got, copy, i)
        for name, before in want.state.items():
            if name in state:
                after = want.state_after.get(name, before)
                self._compare_values(way, f"state {name}", state[name], after, i)
            elif name in first.state and not _same(before, want.state_after.get(name, before)):
                self._wrong(way, "state", f"{name} is missing", i)

    def _compare_held(self, way: str, i: int, want: Call, held: dict[str, Tensor]) -> None:
        """What is in the attributes of the module itself. (A cache need not be there.)"""
        for name in want.held_after.keys() & held.keys():
            self._compare_values(way, f"attribute {name}", held[name], want.held_after[name], i)

    def _compare_values(self, way: str, name: str, got: Any, want: Any, i: int) -> None:
        what = name.split()[0]
        if isinstance(got, Tensor) != isinstance(want, Tensor):
            self._wrong(way, f"{what} type", f"{name}: {type(got)} instead of {type(want)}", i)
        elif not isinstance(want, Tensor):
            if got != want and not (got != got and want != want) and not _close(got, want):
                self._wrong(way, f"{what} values", f"{name}: {got} instead of {want}", i)
        elif got.shape != want.shape:
            self._wrong(way, f"{what} shape", f"{name}: {got.shape} instead of {want.shape}", i)
        elif got.dtype != want.dtype:
            self._wrong(way, f"{what} dtype", f"{name}: {got.dtype} instead of {want.dtype}", i)
        elif not _same(got, want):
            self._wrong(way, f"{what} values", f"{name}: {got} instead of {want}", i)

    def _compare_kept(self, way: str, eager: Session, kept: list[list[Any]]) -> None:
        alike = all(_laid_out_alike(c, eager.calls[0]) for c in eager.calls)
        loose = way in _LOOSE or not alike
        for i, (got, want) in enumerate(zip(kept, eager.kept, strict=True)):
            for k, (a, b) in enumerate(zip(got, want, strict=False)):
                if not isinstance(b, Tensor):
                    continue
                if loose and not _same(b, eager.calls[i].copies[k]):
                    continue  # it shows what was written since
                if not _same(a, b):
                    text = f"result {k} of call {i} is {a} after the last call, instead of {b}"
                    self._wrong(way, "kept values", text, i)
                    return

    def _compare_sharing(self, way: str, eager: Session, labels: list[Made]) -> None:
        """Which results share memory with which, with inputs and with state.

        Where eager puts another tensor in a buffer's place, and where inputs or sizes are not as
        the example's were, it is not promised."""
        if self.unbacked or not all(_laid_out_alike(c, eager.calls[0]) for c in eager.calls):
            return
        ours = _sharing(labels)
        for pair in sorted(ours ^ eager.sharing):
            if any(label.split(" ", 2)[-1] in eager.rebound for label in pair):
                continue
            more = "share" if pair in ours else "do not share"
            self._wrong(way, f"they {more} memory", f"{pair[0]} and {pair[1]}", -1)
            return

    def _compare_slopes(self, way: str, eager: Session, labels: list[Made]) -> None:
        # Where `.data` is written, backwards read what forward has read: docs/export.md. So does
        # eager's of `kron`, which keeps its factors without noticing that they are written to.
        source = self.script.source
        if eager.slopes is None or ".data" in source or ("kron" in source and WRITE.search(source)):
            return
        try:
            ours = _slopes(labels, eager.calls[0].state)
        except RuntimeError as error:
            self._raised(way, error, len(labels))
            return
        if ours is None or len(ours) != len(eager.slopes):
            self._wrong(way, "gradients", f"{ours} instead of {eager.slopes}", -1)
            return
        for k, (a, b) in enumerate(zip(ours, eager.slopes, strict=True)):
            # A leaf that is not used may have zeros instead of nothing.
            a, b = (torch.zeros(()) if g is None or not g.any() else g for g in (a, b))
            if not _same(a, b):
                self._wrong(way, "gradients", f"gradient {k}: {a} instead of {b}", -1)
                return

    # ------------------------------------------------------------------------------------- findings

    def _wrong(self, way: str, what: str, text: str, call: int, minor: bool = False) -> None:
        rank = "minor" if minor else "wrong"
        if self.told and (call > 0 or what in _OF_ALL_CALLS):
            rank, text = "told", self.told[0]
        elif UNCHECKED in self.said and call > 0:
            rank, text = "told", self.said
        self.findings.append(Finding(way, rank, what, text, call))

    def _raised(self, way: str, error: Exception, call: int) -> None:
        text = str(error)
        own = isinstance(error, LostwaxError) and not isinstance(error, VerificationError)
        own |= isinstance(error, RuntimeError) and any(a in text for a in ASSERTIONS)
        rank = "refused" if own else "bare"
        if way == "passes" and OVERWRITTEN in text:
            rank = "refused"  # NoOps removes copies: docs/passes.md
        if way == "torch" and (call > 0 or UNREAD in self.said):
            rank = "refused"  # torch has its own guards, and its own words
        what = type(error).__name__ + (" at the example" if call == 0 else "")
        if own and call == 0 and way != ways.CAPTURED and not self.reads_data:
            rank = "bare"  # it was captured with this very call, and does not hang on its data
        self.findings.append(Finding(way, rank, what, text, call, error))


# ------------------------------------------------------------------------------------------- eager


def in_eager(script: Script, *, python: bool) -> Session:
    """What eager does. It stops where eager raises."""
    session = Session()
    names = script.fresh()
    try:
        subject = names["make"]()
    except Exception as error:
        session.stopped = error
        return session
    first = {n: (id(t), t) for n, t in state_of(subject).items()}
    for i in range(script.program.calls):
        try:
            _change(names, subject, i, python)
            args, kwargs = names["inputs"](i)
            inputs = _tensors((args, kwargs))
            before = {n: t.detach().clone() for n, t in state_of(subject).items()}
            strides = [t.stride() for t in state_of(subject).values()]
            layout = [(t.shape, t.stride()) for t in inputs], _groups(inputs), strides
            gradients = [t.requires_grad for t in inputs]
            results, structure = pytree.tree_flatten(subject(*args, **kwargs))
        except Exception as error:
            session.stopped = error
            break
        _look_at_tensors(subject)
        after = state_of(subject)
        call = Call(
            structure, results, [_copy(r) for r in results], inputs,
            [t.detach().clone() for t in inputs], before,
            {n: t.detach().clone() for n, t in after.items()}, after,
            {n: t.detach().clone() for n, t in ways.held_tensors(subject).items()},
            layout, gradients,
        )  # fmt: skip
        session.calls.append(call)
        # Made for each call: what is done for a call that raises is not done elsewhere.
        session.kept = [[_copy(r) for r in c.results] for c in session.calls]
        session.sharing = _sharing([(c.results, c.inputs, c.state_live) for c in session.calls])
        session.writes |= any(n not in before or not _same(before[n], t) for n, t in after.items())
        session.rebound |= {n for n, t in after.items() if n not in first or first[n][0] != id(t)}
    calls = [(c.results, c.inputs, c.state_live) for c in session.calls]
    same = all(c.gradients == session.calls[0].gradients for c in session.calls)
    if same and session.stopped is None:
        with suppress(RuntimeError):
            session.slopes = _slopes(calls, first)
    return session


def _slopes(calls: list[Made], names: Collection[str]) -> list[Tensor | None] | None:
    """The gradients of the sum of all results, by parameters of the last call and by inputs."""
    results = [r for results, _, _ in calls for r in results if isinstance(r, Tensor)]
    wanted = [r for r in results if r.requires_grad and r.is_floating_point()]
    leaves = [t for _, inputs, _ in calls for t in inputs if t.is_leaf and t.requires_grad]
    # Attributes that a call has made are no names that a program would know.
    last = calls[-1][2] if calls else {}
    state = [last[name] for name in sorted(names) if name in last]
    leaves += [t for t in state if isinstance(t, nn.Parameter) and t.requires_grad and t.is_leaf]
    if not wanted or not leaves:
        return None
    total = torch.stack([r.double().sum() for r in wanted]).sum()
    return list(torch.autograd.grad(total, leaves, allow_unused=True, retain_graph=True))


def _has_slope(result: Tensor, call: Call) -> bool:
    """Does it really depend on anything that requires gradients?"""
    leaves = [t for t in (*call.inputs, *call.state_live.values()) if t.requires_grad and t.is_leaf]
    try:
        slopes = torch.autograd.grad(result.sum(), leaves, allow_unused=True, retain_graph=True)
    except RuntimeError:
        return True
    return any(s is not None and bool(s.any()) for s in slopes)


def _look_at_tensors(module: Any) -> None:
    """Ask for the histories of the tensors that a module holds. A view whose base was written to
    gets another one when it is asked for, and keeps that; a capture asks."""
    for tensor in ways.tensors_of(module):
        _ = tensor.grad_fn


def _reads_data(program: Any) -> bool:
    values = [n.meta.get("val") for m in program.graph_module.modules() for n in m.graph.nodes]
    return any(_UNBACKED.search(str(getattr(value, "shape", value))) for value in values)


def _quiet(way: str) -> AbstractContextManager[Any]:
    """fx prints what its modules raise."""
    return redirect_stderr(io.StringIO()) if way in ("torch", "unflattened") else nullcontext()


def _laid_out_alike(call: Call, first: Call) -> bool:
    """Do inputs lie in memory as those of the example did, and are results of the same sizes?"""
    shapes, example = ([getattr(r, "shape", None) for r in c.copies] for c in (call, first))
    return call.layout == first.layout and shapes == example


def _change(names: dict[str, Any], module: Any, i: int, python: bool) -> None:
    if isinstance(module, nn.Module):
        names["change"](module, i)
    if python:
        names["change_python"](module, i)


def state_of(module: Any) -> dict[str, Tensor]:
    """Parameters and buffers by all their names."""
    if not isinstance(module, nn.Module):
        return {}
    found: dict[str, Tensor] = dict(module.named_parameters(remove_duplicate=False))
    found.update(module.named_buffers(remove_duplicate=False))
    return found


def _copy(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    copied = value.detach().clone()
    return copied.requires_grad_() if value.requires_grad else copied


def _tensors(tree: Any) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(tree) if isinstance(t, Tensor)]


def _groups(tensors: list[Tensor]) -> list[int]:
    """For each tensor the first one that is the same object."""
    places = [id(t) for t in tensors]
    return [places.index(p) for p in places]


def _sharing(calls: list[Made]) -> set[Any]:
    """Pairs of a result and something else that share memory; over all calls."""
    labelled: dict[int, list[tuple[str, bool]]] = {}
    for i, (results, inputs, state) in enumerate(calls):
        named = [(f"{i} result {k}", r, True) for k, r in enumerate(results)]
        named += [(f"{i} input {k}", t, False) for k, t in enumerate(inputs)]
        named += [(f"{i} state {name}", t, False) for name, t in state.items()]
        for label, value, is_result in named:
            if isinstance(value, Tensor) and value.numel():
                where = value.untyped_storage()._cdata
                labelled.setdefault(where, []).append((label, is_result))
    return {
        (a, b)
        for group in labelled.values()
        for k, (a, one) in enumerate(group)
        for b, other in group[:k]
        if one or other
    }


def _same(a: Any, b: Any) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = a.detach(), b.detach()
    return torch.equal(a, b) or torch.allclose(a, b, rtol=1e-4, atol=1e-5, equal_nan=True)


def _close(a: Any, b: Any) -> bool:
    try:
        return abs(a - b) <= 1e-4 * max(1.0, abs(b))
    except TypeError:
        return False
