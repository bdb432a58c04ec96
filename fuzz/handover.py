"""Random programs handed to torch, in whose hands they have to do what they do in ours.

    python -m fuzz.handover [--count 200] [--seed 0] [--jobs 1] [--minutes 60]
                            [--kinds plain rows ...] [--show] [--results FILE]

The programs are those of the other fuzzers: control flow on data (`flow_programs.py`), tensors of
several dtypes whose rows vary ("rows", `executable.py`), modules with state, views and arguments
that share memory (`generate.py`). Each is exported and handed over. torch's verifier has to pass,
`from_torch` to give back what was handed over, and what torch makes of it (`CONSUMERS`) to do what
our module does: results, arguments and buffers of several calls in a row, at several sizes where
they vary, and gradients. Where ours refuses a call, they are compared with eager.

"limit": torch raises, and does so on what it captures itself of the same calls, or only where
gradients are recorded; or its gradients are other ones, and of its own capture, too, or ours where
its `while_loop` is Python's, or its `detach` no alias. The text names the consumer and torch's
words. "unsure": torch raises, and captures nothing itself to compare with;
look at the texts. "lenient": a consumer checks less. "checked": both refuse a call.
Exits with 1 if anything was wrong.
"""

from __future__ import annotations

import io
import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext, redirect_stderr
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.utils._pytree as pytree
from torch import Tensor
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch.export.pt2_archive._package import load_pt2

import lostwax
from fuzz import executable, flow, flow_programs, generate, running, ways
from fuzz.flow import Slow, Told, Ungraded, clone, differentiate, limit
from lostwax.errors import LostwaxError
from lostwax.interop import from_torch, to_torch
from lostwax.interop.exchange import prepare
from lostwax.ir.signature import list_members, strip_class
from lostwax.pt2.peer import find_unreadable
from tests.interop.oracle import describe_ours, differences

KINDS = (*flow_programs.KINDS, "rows", *generate.KINDS)

# ------------------------------------------------------------------------------------- the programs


@dataclass
class Call:
    """One call: its arguments, and the leaves that they are made of."""

    args: list[Any]
    kwargs: dict[str, Any] = field(default_factory=dict)
    leaves: list[Tensor] = field(default_factory=list)


@dataclass
class Case:
    """A program, as it is written and as it is exported, and how it is called."""

    source: str
    make: Callable[[], Any]
    make_exported: Callable[[], Any]
    calls: list[Callable[[], Call]]
    dynamic: Any = None


def make_case(seed: int, kind: str) -> Case:
    if kind == "rows":
        return _make_rows(seed)
    return _make_flow(seed, kind) if kind in flow_programs.KINDS else _make_generated(seed, kind)


def _make_flow(seed: int, kind: str) -> Case:
    rng = random.Random(seed)
    source = flow_programs.write_program(seed, kind)
    truth, exported = (
        flow.make_class(source, f"{kind}_{seed}", each) for each in (flow.PLAIN, flow.OPERATORS)
    )
    cache = flow.make_cache() if kind == "cache" else None
    with_gradients = rng.random() < 0.5

    def call(which: int) -> Call:
        leaves, arguments = flow.make_call(which, _copy(cache), with_gradients)
        return Call(arguments, {}, leaves)

    order = [*range(len(flow.INPUTS)), rng.randrange(len(flow.INPUTS))]
    return Case(source, truth, exported, [partial(call, which) for which in order])


def _make_rows(seed: int) -> Case:
    program = executable.generate(seed)
    sizes = executable.SIZES if program.is_dynamic else (executable.ROWS,) * 3
    rows = lostwax.Dim("rows", min=0, max=max(sizes))
    return Case(
        program.source(),
        program.module,
        partial(program.module, executable.load_operators()),
        [
            partial(lambda n, i: Call([*executable.make_inputs(n, seed + i)]), n, i)
            for i, n in enumerate(sizes)
        ],
        tuple({0: rows} for _ in range(4)) if program.is_dynamic else None,
    )


def _make_generated(seed: int, kind: str) -> Case:
    program = generate.generate(kind, seed)
    names = program.compiled().fresh()
    first = names["inputs"](0)

    def call(which: int) -> Call:
        args, kwargs = names["inputs"](which)
        return Call([*args], kwargs)

    calls = [partial(call, which) for which in range(program.calls)]
    dynamic = ways.spec(names, *first)
    return Case(program.source(), names["make"], names["make"], calls, dynamic)


def _copy(value: Any) -> Any:
    return pytree.tree_map_only(Tensor, clone, value)


# ------------------------------------------------------------------------------------------- calls


def call_all(make: Callable[[], Any], case: Case, with_gradients: bool = True) -> list[Told]:
    """Calls in a row; after one that raises, there is a module anew."""
    module, found = None, []
    for each in case.calls:
        if module is None:
            module = make()
        try:
            call = each()
        except Exception:  # of any class: at this size there are no such arguments
            break
        found.append(_observe(module, call, with_gradients))
        if found[-1].kind != "ran":
            module = None
        if found[-1].kind == "slow":
            break
    return found


def _observe(module: Any, call: Call, with_gradients: bool) -> Told:
    is_module = isinstance(module, torch.nn.Module)
    torch.manual_seed(0)
    try:
        with limit(10), nullcontext() if with_gradients else torch.no_grad():
            result = module(*call.args, **call.kwargs)
            seen = {"results": result, "arguments": (call.args, call.kwargs)}
            if is_module:
                seen["buffers"] = dict(module.named_buffers(remove_duplicate=False))
                seen["parameters"] = {k: p.detach() for k, p in _name_parameters(module).items()}
            seen = _copy(seen)
            if with_gradients:
                parameters = _name_parameters(module)
                named = {**dict(enumerate(call.leaves)), **parameters}
                wanted = {k: v for k, v in named.items() if v.requires_grad}
                given = differentiate(result, [*wanted.values()])
                is_told = not isinstance(given, Ungraded)
                seen["gradients"] = dict(zip(wanted, given, strict=True)) if is_told else given
    except Slow:
        return Told("slow", None)
    except BaseException as error:  # programs raise KeyboardInterrupt, too
        kind = "refused" if isinstance(error, LostwaxError) else "raised"
        return Told(kind, _say(error))
    return Told("ran", seen)


def _name_parameters(module: Any) -> dict[str, Any]:
    is_module = isinstance(module, torch.nn.Module)
    return dict(module.named_parameters(remove_duplicate=False)) if is_module else {}


@dataclass
class Handed:
    """A program in somebody's hands, called from the state that it had at first."""

    program: Any
    make: Callable[[Any], Any] = lambda program: program.module()
    before: list[tuple[Tensor, Tensor]] = field(init=False)

    def __post_init__(self) -> None:
        held = (*self.program.state_dict.values(), *self.program.constants.values())
        self.before = [(t, t.detach().clone()) for t in held if isinstance(t, Tensor)]

    def __call__(self) -> Any:
        self.restore()
        return self.make(self.program)

    def restore(self) -> None:
        for tensor, value in self.before:
            tensor.data.copy_(value)
            if not (tensor.is_leaf or tensor._is_view()):  # calls have left it a history
                tensor.detach_()
        for held in (self.program.state_dict, self.program.constants):
            for name, value in held.items():
                if isinstance(value, Tensor) and not value.is_leaf:  # views cannot be detached
                    held[name] = value.detach()


def _save_and_load(made: Any) -> Any:
    """As `torch.export.load` does, which hides the reason when it fails."""
    file = io.BytesIO()
    torch.export.save(made, file)
    return load_pt2(io.BytesIO(file.getvalue())).exported_programs["model"]


CONSUMERS: dict[str, Callable[[Any], Handed]] = {
    "module": Handed,
    "decomposed": lambda made: Handed(made.run_decompositions()),
    "saved": lambda made: Handed(_save_and_load(made)),
    "unflattened": lambda made: Handed(made, torch.export.unflatten),
    "back": lambda made: Handed(from_torch(made)),
    "again": lambda made: Handed(to_torch(from_torch(made))),
}


# ------------------------------------------------------------------------------------------- judge


def judge(seed: int, kind: str) -> tuple[str, str]:
    """What becomes of a program: "right", "refused", "skipped", "checked", "told", "lenient",
    "limit", "unsure" or "wrong"; and a text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _judge(make_case(seed, kind))


def _judge(case: Case) -> tuple[str, str]:
    try:
        eager = call_all(case.make, case)
    except Exception:  # of any class: torch takes no such module, because of a name, say
        return "skipped", ""
    if not eager or eager[0].kind != "ran":
        return "skipped", ""
    example = case.calls[0]()
    try:
        with limit(60):
            program = lostwax.export(
                case.make_exported(),
                tuple(example.args),
                example.kwargs,
                dynamic_shapes=case.dynamic,
            )
    except BaseException as error:  # of any class: which, other fuzzers judge
        return "refused", str(error).partition("\n")[0]
    home = Handed(program)
    ours = call_all(home, case)
    home.restore()
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            made = to_torch(program)
    except LostwaxError as error:
        return "refused", str(error).partition("\n")[0]
    try:
        made.validate()
        text = tell_way_back(program, made)
    except Exception as error:
        return "wrong", _say(error)
    if text:
        return "wrong", f"it comes back otherwise: {text}"
    lost = frozenset(
        part for each in said for words, part in LOST.items() if words in str(each.message)
    )
    limits, is_lenient = [], ""
    for name in CONSUMERS:
        text, found = _raised(name, made, case)
        outcome = "raised"
        if found:
            outcome, text = _compare(eager, ours, found, lost)
        if outcome == "raised":
            outcome, text = _explain(name, made, program, case, eager, text)
        elif outcome == "wrong" and _differs_so(name, made, case, (ours, found), text):
            outcome, text = "limit", f"{text.split()[2][:-1]} as of torch's own capture"
        elif outcome == "wrong" and ": gradients:" in text:
            limit_of_theirs = _explain_gradients(name, made, case, ours)
            outcome, text = ("limit", limit_of_theirs) if limit_of_theirs else (outcome, text)
        if outcome == "wrong":
            return "wrong", f"{name}: {text}"
        if outcome in ("limit", "unsure"):
            limits.append((outcome, f"{name}: {text}"))
        if outcome == "lenient":
            is_lenient = f"{name}: {text}"
    if limits:
        return max(limits, key=itemgetter(0))  # what is unsure, if anything is
    if is_lenient:
        return "lenient", is_lenient
    refused = [each.seen for each in ours if each.kind == "refused"]
    return ("checked", refused[0].partition("\n")[0]) if refused else ("right", "")


def tell_way_back(program: Any, made: Any) -> str:
    """What is not as it was, there and back; "" if all is."""
    plain, state, constants = prepare(program)
    given = describe_ours(replace(plain, state_dict=state, constants=constants))
    ignored = (*_STATE, *(("outputs", "calls") if list_members(plain.graph_signature) else ()))
    found = differences(describe_ours(from_torch(made)), given, ignored)
    return "; ".join(each for each in found if not _KNOWN.search(each))


_KNOWN = re.compile(
    r"^ranges\.u\d+: .*None|\.val: \(<class '(int|bool|float)'>, .* / \(<class 'torch\.Sym"
    r"|\.val: .*\b(min|max)\(1, |^:output\.val: .*torch\.Sym"
)
"""What torch knows better: its environment reads the checks of a graph, and has limits of a symbol
that is equal to another. And what it takes for known: sizes are positive, so `max(1, size)` is the
size to it. Results are compared where they are computed."""
_STATE = ("state.", "constants.", "examples")
"""Of state that shares memory, each hand-over has its own copies."""


def _compare(
    eager: list[Told], ours: list[Told], found: list[Told], lost: frozenset[str]
) -> tuple[str, str]:
    """Is what a consumer was seen to do what we do? Where we refuse, it may do what eager does."""
    for i, (want, mine, got) in enumerate(zip(eager, ours, found, strict=False)):
        if "slow" in (want.kind, mine.kind, got.kind):
            break
        if mine.kind == "ran":
            if got.kind != "ran":
                return "raised", str(got.seen)
            if isinstance(got.seen.get("gradients"), Ungraded) and "gradients" not in lost:
                return "raised", got.seen["gradients"]
            if text := _tell(mine, got, lost):
                return "wrong", f"call {i}: {text}"
        elif got.kind == "ran":
            if want.kind == "ran" and (text := _tell(want, got, lost)):
                return (
                    "wrong",
                    f"call {i}: lost is the check {mine.seen.partition(chr(10))[0]}; {text}",
                )
            return "lenient", f"call {i}: runs, where ours {mine.seen}"
    return "right", ""


def _tell(want: Told, got: Told, lost: frozenset[str]) -> str:
    """What is different, but for what the hand-over has said is lost; "" if nothing is."""
    for part, value in want.seen.items():
        other = got.seen.get(part, value)
        if part in _BY_NAME and isinstance(value, dict) and isinstance(other, dict):
            both = value.keys() & other.keys()
            value, other = ({key: each[key] for key in both} for each in (value, other))
        if "members" in lost:
            value, other = pytree.tree_map(strip_class, (value, other))
        if part not in lost and not flow.is_same(value, other):
            return f"{part}: {other}, ours: {value}"
    return ""


_BY_NAME = ("buffers", "parameters", "gradients")
LOST = {"backward of its own": "gradients", "members of an enumeration": "members"}
"""What `to_torch` warns of, and what is different then."""


def _explain(
    name: str, made: Any, program: Any, case: Case, eager: list[Told], text: str
) -> tuple[str, str]:
    """Whose limit is it that a consumer raises? It is torch's where it raises the same on what
    torch itself captures, or where it does as we do if no gradients are recorded. It is ours where
    torch's own capture of the module makes the call, and does there what eager does."""
    first = _raised(name, made, replace(case, calls=case.calls[:1]))[0]
    heard = [each for grad in (True, False) for each in _hear_own(name, made, case, eager, grad)]
    # (That our program runs as a module has been seen before the other consumers.)
    telling = [each.text for each in heard if each.is_module or name != "module"]
    if _signature(text) in map(_signature, telling):
        return "limit", f"of torch's own capture, too: {text}"
    if first and any(each.is_as_ours and each.is_right for each in heard):
        return "wrong", f"{text}; torch's own capture of the module makes the call"
    found = _raised(name, made, case, with_gradients=False)[1]
    if found:
        home = Handed(program)
        ours = call_all(home, case, with_gradients=False)
        home.restore()
        outcome, other = _compare(ours, ours, found, frozenset({"members"}))
        if outcome in ("right", "lenient"):
            return "limit", f"only without gradients: {text}"
        if outcome == "wrong":
            return outcome, f"without gradients: {other}"
    programs = [each.text for each in heard if each.is_captured and not each.is_module]
    if programs and all(programs) and name != "module":
        return "limit", f"{text}; of torch's own capture of it: {programs[0]}"
    if name == "saved" and (unread := find_unreadable(program)):  # as `lostwax.save` says, too
        return "limit", f"{text}; {unread[0]}"
    return "unsure", f"{text}; {next((each.text for each in heard), '')}"


def _differs_so(
    name: str, made: Any, case: Case, seen: tuple[list[Told], list[Told]], text: str
) -> bool:
    """Are the gradients or buffers that are wrong by a text those of torch's own capture, too? Of
    names of one buffer that is not saved, torch unflattens two, and which of them is written is
    another one there."""
    told = re.match(r"call (\d+): (gradients|buffers):", text)
    if told is None:
        return False
    (ours, found), call, part = seen, int(told[1]), told[2]
    case = replace(case, calls=case.calls[: call + 1])
    for own, is_module, _ in _capture_own(made, case, True):
        is_telling = not isinstance(own, str) and (is_module or name != "module")
        seen_there = _raised(name, own, case)[1] if is_telling else []
        if len(seen_there) > call and seen_there[call].kind == "ran":
            is_split = part == "buffers" and name == "unflattened"
            if is_split and bool(_tell(ours[call], seen_there[call], frozenset({"gradients"}))):
                return True
            if not _tell(found[call], seen_there[call], frozenset()):
                return True
    return False


def _explain_gradients(name: str, made: Any, case: Case, ours: list[Told]) -> str:
    """Why gradients differ, if that is torch's doing: they are ours where it is undone. Its
    decompositions make an alias of `detach`. Its `while_loop` gives a loop that does not run once
    the gradients of its body, and to what a body closes over those of one turn."""

    def is_ours(consumer: Handed) -> bool:
        found = call_all(consumer, case)
        consumer.restore()
        return _compare(ours, ours, found, frozenset())[0] in ("right", "lenient")

    loops = _Loops()
    with (
        patch.object(type(while_loop_op), "__call__", loops),
        patch.object(type(cond_op), "__call__", _choose),
    ):
        if is_ours(CONSUMERS[name](made)) and loops.differing:
            return (
                "gradients of a while_loop that does not run once, or of what its body closes over"
            )
        if name != "decomposed":
            return ""
        decomposed = made.run_decompositions()
        aliases = decomposed.graph.find_nodes(op="call_function", target=aten.alias.default)
        for node in aliases:
            node.target = aten.detach.default
        decomposed.graph_module.recompile()
        return "gradients of what was detached" if aliases and is_ours(Handed(decomposed)) else ""


aten = torch.ops.aten


def _choose(cond: Any, test: Any, true: Any, false: Any, given: Any = ()) -> Any:
    """`cond` by Python."""
    return (true if test else false)(*given)


class _Loops:
    """`while_loop` by Python, which autograd goes through step by step."""

    def __init__(self) -> None:
        self.differing = 0
        """So many of them did not run once, or closed over what needs gradients."""

    def __call__(self, test: Any, body: Any, carried: Any, others: Any) -> tuple[Any, ...]:
        made = carried
        while test(*made, *others):
            made = body(*made, *others)
        tensors = [each for each in others if isinstance(each, Tensor)]
        self.differing += made is carried or any(each.requires_grad for each in tensors)
        return tuple(each.clone() if isinstance(each, Tensor) else each for each in made)


class Heard(NamedTuple):
    """What torch raises where a consumer has what torch itself captures; "" if nothing."""

    text: str
    is_module: bool
    """Captures of the module, not of the program in its hands?"""
    is_captured: bool
    """Does torch capture it at all?"""
    is_as_ours: bool
    """Is it a functional program of the module, whose gradients are wanted?"""
    is_right: bool
    """Does it what eager does?"""


def _hear_own(
    name: str, made: Any, case: Case, eager: list[Told], with_gradients: bool
) -> Iterator[Heard]:
    case = replace(case, calls=case.calls[:1])
    for own, is_module, is_functional in _capture_own(made, case, with_gradients):
        is_said = isinstance(own, str)
        text, found = (own, []) if is_said else _raised(name, own, case, with_gradients)
        is_right = bool(found) and _compare(eager, eager, found, frozenset())[0] == "right"
        is_as_ours = is_module and is_functional and with_gradients
        yield Heard(text, is_module, not is_said, is_as_ours, is_right)


def _capture_own(made: Any, case: Case, with_gradients: bool) -> Iterator[tuple[Any, bool, bool]]:
    """What torch itself captures: of the module as it is written, and of the program in its hands;
    as it is, and functional, as ours is. Or the words with which it refuses. (What it makes of our
    program is no other witness of what that does as a module.)"""
    keeping, has_module = Handed(made), False
    for make, is_module in ((case.make, True), (case.make_exported, True), (made.module, False)):
        if is_module and has_module:
            continue
        example, own = case.calls[0](), None
        try:
            with (
                nullcontext() if with_gradients else torch.no_grad(),
                limit(60),
                redirect_stderr(io.StringIO()),
            ):
                own = torch.export.export(make(), tuple(example.args), example.kwargs)
                functional = own.run_decompositions()
        except Exception as error:  # of any class: whatever torch stumbles over
            yield _say(error), is_module, False
        else:
            yield functional, is_module, True
        finally:
            keeping.restore()
        if own is not None:
            has_module = True
            yield own, is_module, False


def _raised(
    name: str, made: Any, case: Case, with_gradients: bool = True
) -> tuple[str, list[Told]]:
    """What a consumer of a program raises, and what it is seen to do; "" if it raises nothing."""
    try:
        with limit(120):
            consumer = CONSUMERS[name](made)
            found = call_all(consumer, case, with_gradients)
            consumer.restore()
    except Exception as error:  # of any class: whatever torch stumbles over
        return _say(error), []
    return next((each.seen for each in found if each.kind == "raised"), ""), found


def _say(error: BaseException) -> str:
    """The words of an error: of the first, which others hide."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]:.200}"


def _signature(text: str) -> str:
    """The same for errors that are alike."""
    line = next(iter(text.splitlines()), "")
    return re.sub(r"'[^']*'|\b[a-z_]*\d\w*|-?\d+(\.\d+)?", "#", line)[:60]


def main() -> int:
    return running.main(judge, lambda seed, kind: make_case(seed, kind).source, KINDS)


if __name__ == "__main__":
    sys.exit(main())
