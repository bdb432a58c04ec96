"""Passes, small frozen values that make one program of another, and the pipeline that runs them.

A pass says what it requires of a program and what it ensures. A pipeline checks that its passes fit
together before it runs any, and verifies the program after each. Must not know single passes: they
are in `transforms/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

from torch.fx import GraphModule, Node

from lostwax.errors import PassError
from lostwax.fake.autocast import without_autocast
from lostwax.ir.passes.draft import Draft
from lostwax.ir.passes.journal import Entry, Journal
from lostwax.ir.passes.properties import PROPERTIES, Property
from lostwax.ir.program import ExportedProgram, check_is_program
from lostwax.ir.rules.verify import verify
from lostwax.ir.text import source_text


@dataclass(frozen=True)
class Pass:
    """Makes a new program of one. A subclass is a frozen dataclass whose fields are its options:

        @dataclass(frozen=True)
        class Mine(Pass):
            ensures = ("no-dead-code",)

            def edit(self, draft: Draft) -> None:
                ...  # change draft.graph with FX

    The program that it is called with is never changed: `edit` is given a private copy.
    """

    @property
    def name(self) -> str:
        """The name of the pass in journals and errors."""
        return type(self).__name__

    @property
    def requires(self) -> tuple[str, ...]:
        """Properties that a program must have before it, by name (`lostwax.passes.PROPERTIES`)."""
        return ()

    @property
    def ensures(self) -> tuple[str, ...]:
        """Properties that every program has after it."""
        return ()

    @property
    def loses(self) -> tuple[str, ...]:
        """Properties that a program may have before it, and not after."""
        return ()

    def edit(self, draft: Draft) -> None:
        """Change the draft in place."""
        raise NotImplementedError(f"{self.name} defines neither edit() nor run()")

    def run(self, program: ExportedProgram) -> ExportedProgram:
        """Return the new program. A pass that needs no draft defines this instead of `edit`."""
        draft = Draft(program)
        self.edit(draft)
        return draft.finish()

    def __call__(self, program: ExportedProgram, *, verify: bool = True) -> ExportedProgram:
        return Pipeline((self,))(program, verify=verify)


FxFunction = Callable[[GraphModule], Any]


@dataclass(frozen=True)
class FxPass(Pass):
    """A plain FX pass: a function of a `GraphModule` that edits it, or returns another, or a
    `PassResult` of torch.fx. The signature follows what it does to placeholders and outputs."""

    function: FxFunction
    name: str = ""
    requires: tuple[str, ...] = ()
    ensures: tuple[str, ...] = ()
    loses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", _name(self.function))

    def edit(self, draft: Draft) -> None:
        result = self.function(draft.graph_module)
        result = getattr(result, "graph_module", result)  # a PassResult
        if isinstance(result, GraphModule):
            draft.adopt(result)
        elif result is not None:
            raise PassError(
                f"it returned a {type(result).__name__}\n"
                "  instead: return the GraphModule, a PassResult, or nothing"
            )


def _name(function: Any) -> str:
    while isinstance(function, partial):
        function = function.func
    return getattr(function, "__name__", None) or type(function).__name__


@dataclass(frozen=True)
class Pipeline:
    """Passes, one after another: `Pipeline((DeadCode(), mine))(program)`.

    A plain function of a `GraphModule` is taken as an `FxPass`; a pipeline within a pipeline as its
    passes.
    """

    passes: Sequence[Pass | Pipeline | FxFunction]

    def __post_init__(self) -> None:
        object.__setattr__(self, "passes", tuple(_flatten(self.passes)))

    def __iter__(self) -> Iterator[Pass]:
        return iter(self.passes)  # type: ignore[arg-type]

    def __call__(
        self, program: ExportedProgram, *, journal: Journal | None = None, verify: bool = True
    ) -> ExportedProgram:
        """Run the passes. `verify=False` skips the checks after each pass, for programs that are
        verified elsewhere."""
        check_is_program(program, "a pass")
        self.check(program)
        for i, each in enumerate(self):
            if verify and i:  # an earlier pass may have lost it without declaring so
                for name in each.requires:
                    _require(each, PROPERTIES[name], program, None)
            start = perf_counter()
            after = _run(each, program)
            seconds = perf_counter() - start
            if verify:
                _verify(each, after)
            if journal is not None:
                journal.entries.append(Entry(each.name, repr(each), program, after, seconds))
            program = after
        return program

    def check(self, program: ExportedProgram) -> None:
        """Check that the passes fit together for this program, without running any."""
        lost: dict[str, str] = {}
        ensured: set[str] = set()
        for each in self:
            for name in each.requires:
                if name not in ensured:
                    _require(each, _find_property(name, each), program, lost.get(name))
            for name in (*each.ensures, *each.loses):
                _find_property(name, each)
            lost.update(dict.fromkeys(each.loses, each.name))
            ensured = (ensured - set(each.loses)) | set(each.ensures)


def _flatten(given: Sequence[Any]) -> Iterator[Pass]:
    if not isinstance(given, (tuple, list)):
        raise PassError(
            f"a Pipeline is made of a tuple of passes, not of a {type(given).__name__}\n"
            "  instead: Pipeline((first, second))"
        )
    for each in given:
        if isinstance(each, Pipeline):
            yield from each
        elif isinstance(each, Pass):
            yield each
        elif callable(each) and not isinstance(each, type):
            yield FxPass(each)
        else:
            hint = f"{each.__name__}()" if isinstance(each, type) else "an FxPass of a function"
            raise PassError(f"{each!r} is not a pass\n  instead: {hint}")


def _find_property(name: str, of: Pass) -> Property:
    if name not in PROPERTIES:
        raise PassError(
            f"the pass {of.name!r} speaks of the property {name!r}, which is not known; known are "
            f"{', '.join(sorted(PROPERTIES))}\n"
            "  instead: add it, lostwax.passes.PROPERTIES[name] = Property(name, sentence, check)",
            of.name,
        )
    return PROPERTIES[name]


def _require(each: Pass, wanted: Property, program: ExportedProgram, lost_by: str | None) -> None:
    if lost_by is None:
        broken = _first_break(wanted, program)
        if broken is None:
            return
        why = f"that is not true of the program that comes to it: {broken}"
    else:
        why = f"{lost_by!r}, before it, loses that"
    raise PassError(
        f"the pass {each.name!r} requires {wanted.name!r} ({wanted.sentence}); {why}\n"
        f"  instead: put a pass that ensures {wanted.name!r} before it",
        each.name,
    )


def _first_break(wanted: Property, program: ExportedProgram) -> str | None:
    """Say what first breaks the property; None if it holds."""
    for node, text in wanted.check(program):
        if isinstance(node, Node):
            source = source_text(node)
            return f"{node.name!r}: {text}" + (f"\n    at {source}" if source else "")
        return text if node is None else f"{node!r}: {text}"
    return None


def _run(each: Pass, program: ExportedProgram) -> ExportedProgram:
    try:
        with without_autocast():  # the caller's autocast must not change what a pass computes
            return each.run(program)
    except PassError as error:
        if error.name:
            raise
        raise PassError(f"the pass {each.name!r} failed: {error}", each.name) from error
    except Exception as error:
        error.add_note(f"while running the pass {each!r}")
        raise


def _verify(each: Pass, program: ExportedProgram) -> None:
    violations = verify(program)
    if violations:
        shown = "\n  ".join(str(v) for v in violations[:5])
        more = f"\n  and {len(violations) - 5} more" if len(violations) > 5 else ""
        raise PassError(
            f"the pass {each.name!r} broke the program:\n  {shown}{more}",
            each.name,
            tuple(violations),
        )
    for name in each.ensures:
        broken = _first_break(PROPERTIES[name], program)
        if broken is not None:
            raise PassError(
                f"the pass {each.name!r} ensures {name!r} ({PROPERTIES[name].sentence}), but after "
                f"it that is not true: {broken}",
                each.name,
            )
