"""How far fakes agree with eager, operator by operator: `python -m tests.ops.report --help`.

python -m tests.ops.report                     concrete sizes, every operator, sample and form
python -m tests.ops.report --op add --op cat   some operators (a name, or a name with * in it)
python -m tests.ops.report --symbolic          every size a symbol, compared at several sizes
python -m tests.ops.report --all               both
python -m tests.ops.report --form gradient     the gradients, which use the backward operators
python -m tests.ops.report --against torch     torch's own FakeTensorMode in place of ours
python -m tests.ops.report --markdown FILE     the disagreements by operator, worst first
python -m tests.ops.report --device cuda       on a GPU; --json FILE: the figures
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from tests.ops.conformance import (
    ERRORS,
    FORMS,
    GRADIENT,
    Call,
    Outcome,
    Verdict,
    calls,
    dtypes_of,
    error_calls,
    judge,
    name_of,
    operators,
)

SECONDS = 60  # for one sample; an operator that hangs is wrong, and the report goes on
BAD = {
    "static": {Verdict.WRONG, Verdict.REFUSED},
    "errors": {Verdict.SILENT, Verdict.OTHER_CLASS},
    "symbolic": {Verdict.WRONG, Verdict.UNGUARDED},
    "refused": {Verdict.REFUSED},
}
SYMBOLIC_FORMS = ("call", "inplace")
NEUTRAL = {Verdict.SKIPPED, Verdict.EXCUSED}


@dataclass
class Tally:
    """What was found for one operator in one section."""

    counts: Counter[Verdict] = field(default_factory=Counter)
    forms: Counter[tuple[str, Verdict]] = field(default_factory=Counter)
    found: list[tuple[Call, Outcome]] = field(default_factory=list)
    misworded: int = 0

    def add(self, call: Call, outcome: Outcome, bad: set[Verdict]) -> None:
        self.counts[outcome.verdict] += 1
        self.forms[call.form, outcome.verdict] += 1
        self.misworded += not outcome.worded
        if outcome.verdict in bad:
            self.found.append((call, outcome))

    def bad(self) -> int:
        return len(self.found)

    def judged(self) -> int:
        return sum(n for v, n in self.counts.items() if v not in NEUTRAL)


@dataclass(frozen=True)
class Choice:
    """Which samples are run, and on which fakes."""

    make: Callable[[], Any]
    forms: tuple[str, ...] = FORMS
    dtypes: tuple[str, ...] = ()
    limit: int | None = None
    device: str = "cpu"
    few: int | None = None
    """At most so many samples of each dtype, taken from all of them."""

    def calls(self, op: Any) -> Iterator[Call]:
        found = dtypes_of(op, self.device)
        chosen = (d for d in found if not self.dtypes or name_of(d) in self.dtypes)
        each = (calls(op, d, self.forms, self.device, self.few) for d in chosen)
        return islice(chain.from_iterable(each), self.limit)


def concrete(op: Any, choice: Choice) -> dict[str, Tally]:
    """Samples with concrete sizes, those that eager runs and those at which it raises."""
    tallies = {"static": Tally(), "errors": Tally()}
    for call in chain(choice.calls(op), error_calls(op, choice.device)):
        outcome = within_time(judge, call, choice.make())
        section = "errors" if outcome.verdict in ERRORS or call.form == "error" else "static"
        tallies[section].add(call, outcome, BAD[section])
    return tallies


def symbolic(op: Any, choice: Choice) -> dict[str, Tally]:
    """Samples with symbolic sizes; those that the fakes refuse are counted apart."""
    from tests.ops.resize import judge_symbolic

    tallies = {"symbolic": Tally(), "refused": Tally()}
    for call in choice.calls(op):
        outcome = within_time(judge_symbolic, call, choice.make())
        section = "refused" if outcome.verdict is Verdict.REFUSED else "symbolic"
        tallies[section].add(call, outcome, BAD[section])
    return tallies


def within_time(how: Callable[[Call, Any], Outcome], call: Call, fakes: Any) -> Outcome:
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SECONDS)
    try:
        return how(call, fakes)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _too_long(signum: int, frame: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} s for one sample")


# ---------------------------------------------------------------------------------------- printing


def total(tallies: dict[str, Tally]) -> Tally:
    all_of_them = Tally()
    for t in tallies.values():
        all_of_them.counts += t.counts
        all_of_them.forms += t.forms
        all_of_them.found += t.found
        all_of_them.misworded += t.misworded
    return all_of_them


def summary(section: str, tallies: dict[str, Tally]) -> list[str]:
    t = total(tallies)
    judged, bad = t.judged(), t.bad()
    share = 100 * (judged - bad) / judged if judged else 100.0
    clean = sum(not x.found for x in tallies.values())
    lines = [
        f"{section}: {share:.2f} % of {judged} samples ({bad} fail); "
        f"{clean} of {len(tallies)} operators without a failure",
        "  " + ", ".join(f"{v} {n}" for v, n in sorted(t.counts.items())),
    ]
    for form in dict.fromkeys(f for f, _ in t.forms):
        counts = {v: n for (f, v), n in sorted(t.forms.items()) if f == form}
        lines.append(f"  {form}: " + ", ".join(f"{v} {n}" for v, n in counts.items()))
    if section == "errors":
        lines.append(f"  {t.misworded} errors are worded differently from what torch lists")
    return lines


def figures(tallies: dict[str, Tally]) -> dict[str, Any]:
    """The same for machines: how many fail, and how many of each operator."""
    t = total(tallies)
    judged, bad = t.judged(), t.bad()
    return {
        "samples": judged,
        "failing": bad,
        "share": round(1 - bad / judged, 5) if judged else 1.0,
        "operators": {name: tally.bad() for name, tally in worst(tallies)},
    }


def groups(tally: Tally) -> list[tuple[Call, Outcome, int]]:
    """One example for each kind of disagreement, the smallest call, most frequent first."""
    kinds: dict[tuple[Any, ...], list[tuple[Call, Outcome]]] = defaultdict(list)
    for call, outcome in tally.found:
        kinds[outcome.verdict, kind_of(outcome.detail)].append((call, outcome))
    shortest = [
        (*min(members, key=lambda m: len(str(m[0]))), len(members)) for members in kinds.values()
    ]
    return sorted(shortest, key=lambda g: -g[2])


def kind_of(detail: str) -> str:
    """The detail without its numbers."""
    return "".join("#" if c.isdigit() else c for c in detail)[:60]


def markdown(results: dict[str, dict[str, Tally]]) -> str:
    lines = ["# Conformance: disagreements with eager, worst operators first", ""]
    for section, tallies in results.items():
        lines += [f"## {section}", "", *summary(section, tallies), ""]
        for name, tally in worst(tallies):
            lines += ["", f"### {name}: {tally.bad()} of {tally.judged()}"]
            for call, outcome, n in groups(tally)[:6]:
                lines.append(f"- {n}× **{outcome.verdict}** `{call}`: {outcome.detail[:400]}")
        lines.append("")
    return "\n".join(lines)


def worst(tallies: dict[str, Tally]) -> list[tuple[str, Tally]]:
    return sorted(((n, t) for n, t in tallies.items() if t.found), key=lambda nt: -nt[1].bad())


def print_section(section: str, tallies: dict[str, Tally], examples: int) -> None:
    for name, tally in worst(tallies):
        print(f"{name}: {tally.bad()} of {tally.judged()}")
        for call, outcome, n in groups(tally)[:examples]:
            print(f"    {n}× {outcome.verdict} {call}\n        {outcome.detail}")
    print("\n".join(summary(section, tallies)))


# ------------------------------------------------------------------------------------- the command


def maker(against: str) -> Callable[[], Any]:
    if against == "torch":
        from tests.ops.peer import TorchFakes

        return TorchFakes
    from tests.ops.ours import OurFakes

    return OurFakes


def arguments(argv: list[str]) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("--op", action="append", default=[], help="name of an operator, * allowed")
    p.add_argument("--dtype", action="append", default=[], help="float32, int64")
    p.add_argument("--form", action="append", default=[], choices=(*FORMS, GRADIENT))
    p.add_argument("--symbolic", action="store_true", help="symbolic sizes only")
    p.add_argument("--all", action="store_true", help="concrete and symbolic sizes")
    p.add_argument("--against", choices=("lostwax", "torch"), default="lostwax")
    p.add_argument("--limit", type=int, help="samples of each operator")
    p.add_argument("--examples", type=int, default=3, help="kinds of disagreement an operator")
    p.add_argument("--device", default="cpu", help="cpu, or cuda")
    p.add_argument("--json", type=Path, help="write the figures to this file")
    p.add_argument("--markdown", type=Path, help="write the disagreements to this file")
    return p.parse_args(argv)


def main(argv: list[str]) -> int:
    a = arguments(argv)
    torch.set_num_threads(1)
    chosen = {
        name: op
        for name, op in operators().items()
        if not a.op or any(fnmatch(name, pattern) for pattern in a.op)
    }
    results: dict[str, dict[str, Tally]] = defaultdict(dict)
    for survey in (concrete, symbolic) if a.all else (symbolic,) if a.symbolic else (concrete,):
        began = time.perf_counter()
        forms = SYMBOLIC_FORMS if survey is symbolic else FORMS
        choice = Choice(maker(a.against), tuple(a.form) or forms, tuple(a.dtype), a.limit, a.device)
        for name, op in chosen.items():
            try:
                found = survey(op, choice)
            except Exception as error:  # of the samples: some cannot be made on every machine
                print(f"{name}: no samples, {type(error).__name__}: {str(error)[:120]}")
                continue
            for section, tally in found.items():
                results[section][name] = tally
        print(f"{survey.__name__}: {time.perf_counter() - began:.0f} s")
    for section, tallies in results.items():
        print_section(section, tallies, a.examples)
    if a.json:
        a.json.write_text(json.dumps({s: figures(t) for s, t in results.items()}, indent=1))
    if a.markdown:
        a.markdown.write_text(markdown(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
