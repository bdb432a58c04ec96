"""Random programs of the kind that users write, through every way, compared with eager.

    python -m fuzz [--count 20000] [--seed 0] [--kind masks|state|calls|names|ways|mixed|all]
                   [--jobs 1] [--minimize] [--torch 50] [--ways module saved ...] [--show seed]

A program is several calls of a module whose results are all kept. A way (`ways.py`) does what eager
does, or refuses with an error of lostwax's: all else is a failure. Prints how many programs of each
kind there were and what became of them, the refusals by their text, and the failures by what is
alike, with the smallest program of each. Exits with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import random
import re
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from fuzz.generate import KINDS, generate
from fuzz.judge import Finding, judge
from fuzz.program import Program
from fuzz.shrink import fails, shrink
from fuzz.ways import CAPTURED, WAYS

ALWAYS = ("module", CAPTURED)
SHRUNK = 10
"""So many failures of one signature are made smaller, to see whether they are alike."""


@dataclass
class Failure:
    """One of several alike."""

    finding: Finding
    program: Program
    after: int
    """So many programs had been tried before."""
    count: int = 1
    flaky: bool = False


@dataclass
class Report:
    """What became of many programs."""

    programs: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By kind and rank."""
    ways: Counter[tuple[str, str]] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    """For each refusal a program that has it."""
    failures: dict[str, Failure] = field(default_factory=dict)
    alike: dict[str, list[str]] = field(default_factory=dict)

    def add(self, program: Program, findings: list[Finding], minimize: bool = False) -> None:
        total = self.programs.total()
        self.programs[program.kind] += 1
        ranks = {f.rank for f in findings}
        rank = next(
            r for r in ("wrong", "bare", "minor", "told", "refused", "right", "eager") if r in ranks
        )
        self.outcomes[program.kind, rank] += 1
        for finding in findings:
            self.ways[finding.way, finding.rank] += 1
            if finding.rank in ("refused", "told", "minor"):
                text = refusal(finding)
                self.refusals[text] += 1
                self.examples.setdefault(text, f"{program.kind} {program.seed}")
        for finding in apart([f for f in findings if f.is_failure]):
            self._fail(program, finding, total, minimize)

    def _fail(self, program: Program, finding: Finding, after: int, minimize: bool) -> None:
        """Failures are alike by their signature; small ones also by their statements."""
        keys = self.alike.setdefault(finding.signature, [])
        if keys and (not minimize or len(keys) >= SHRUNK):
            self.failures[keys[-1]].count += 1
            return
        flaky = not fails(program, finding)
        small = shrink(program, finding) if minimize and not flaky else program
        key = f"{finding.signature} | {shape(small)}" if minimize else finding.signature
        keys.append(key)
        if key in self.failures:
            self.failures[key].count += 1
        else:
            self.failures[key] = Failure(finding, small, after, flaky=flaky)

    def merge(self, other: Report) -> None:
        for name in ("programs", "outcomes", "ways", "refusals"):
            getattr(self, name).update(getattr(other, name))
        self.examples = {**other.examples, **self.examples}
        for key, failure in other.failures.items():
            if key in self.failures:
                self.failures[key].count += failure.count
            else:
                self.failures[key] = failure


def apart(failures: list[Finding]) -> list[Finding]:
    """Without those that the program itself has: they are no fault of the way."""
    first = ("export", "module")
    known = {(f.rank, f.what) for f in failures if f.way in first}
    return [f for f in failures if f.way in first or (f.rank, f.what) not in known]


def refusal(finding: Finding) -> str:
    line = finding.text.splitlines()[0] if finding.text else ""
    line = re.sub(r"\bself\.\w+(\.\w+|\[\w+\])*|\b[xht]\d+\b", "_", line)
    line = re.sub(r"'[^']*'|\[[^\]]*\]|\([\d, ]*\)|-?\d+(\.\d+)?(e-?\d+)?", "#", line)
    stage = finding.way if finding.call < 0 else "a call"
    is_clear = re.search(r"\n\s*(fix|instead|until then|or)\b", finding.text) is not None
    return f"{stage}: {finding.what}: {'' if is_clear else '(no way out) '}{line}"[:170]


def shape(program: Program) -> str:
    """What the statements of a small program are like."""
    lines = [*program.init, *program.body, *(c.text for c in program.changes)]
    text = " ; ".join(" ".join(line.split()) for line in lines)
    return re.sub(r"\b([xht])\d+\b", r"\1", text)[:160]


# ---------------------------------------------------------------------------------------- running


def chosen_ways(seed: int, torch_every: int, share: float = 0.35) -> list[str]:
    """All of them would be slow: two always, of the others a third, torch's own seldom."""
    rng = random.Random(seed)
    found = [w for w in WAYS if w not in ("torch", *ALWAYS) and rng.random() < share]
    return [*ALWAYS, *found, *(["torch"] if torch_every and seed % torch_every == 0 else [])]


def run(options: argparse.Namespace, kinds: list[str], seeds: range) -> Report:
    """The programs of some seeds; the kinds take turns."""
    report, started = Report(), time.perf_counter()
    settle()
    for n, seed in enumerate(seeds):
        kind = kinds[seed % len(kinds)]
        program, findings = tried(kind, seed, options)
        report.add(program, findings, options.minimize)
        if n % 1000 == 999 and options.jobs == 1:
            took = time.perf_counter() - started
            print(
                f"{n + 1} programs, {1e3 * took / (n + 1):.1f} ms each", file=sys.stderr, flush=True
            )
        if n % 20 == 19:
            settle()
    return report


def settle() -> None:
    """Full collections are to cost little: what is there now is not looked at again."""
    gc.collect()
    gc.freeze()


def tried(kind: str, seed: int, options: argparse.Namespace) -> tuple[Program, list[Finding]]:
    gc.set_threshold(*random.Random(seed).choice(((700, 10, 10), (50, 5, 5), (5, 5, 5))))
    program = generate(kind, seed)
    ways = options.ways or chosen_ways(seed, options.torch)
    script = program.compiled()
    findings = judge(script, ways)
    script.forget()
    return program, findings


def quieten() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # what torch thinks of a file that it reads
    torch.set_num_threads(1)


def _job(task: tuple[argparse.Namespace, list[str], range]) -> Report:
    quieten()
    report = run(*task)
    for failure in report.failures.values():
        failure.finding.error = None  # tracebacks do not travel
    return report


# ------------------------------------------------------------------------------------------ report


def told(report: Report, took: float) -> Iterator[str]:
    ranks = ("right", "refused", "told", "eager", "minor", "bare", "wrong")
    yield f"{'kind':<12}{'programs':>9}" + "".join(f"{r:>9}" for r in ranks)
    for kind, count in sorted(report.programs.items()):
        yield f"{kind:<12}{count:>9}" + "".join(f"{report.outcomes[kind, r]:>9}" for r in ranks)
    yield ""
    yield f"{'way':<12}{'times':>9}" + "".join(f"{r:>9}" for r in ranks)
    for way in sorted({w for w, _ in report.ways}):
        counts = [report.ways[way, r] for r in ranks]
        yield f"{way:<12}{sum(counts):>9}" + "".join(f"{c:>9}" for c in counts)
    yield "\nrefusals"
    for text, count in report.refusals.most_common(60):
        yield f"{count:7d} {text}   [{report.examples[text]}]"
    failures = sorted(report.failures.items(), key=lambda kf: (kf[1].finding.rank, -kf[1].count))
    for key, failure in failures:
        yield f"\n{'=' * 100}\n{failure.count} times: {key}"
        program = failure.program
        note = ", ONLY AFTER OTHERS" if failure.flaky else ""
        yield f"first after {failure.after} programs: {program.kind} {program.seed}{note}"
        yield f"{failure.finding.way}, call {failure.finding.call}: {failure.finding.text[:1500]}"
        if failure.finding.rank == "bare" and failure.finding.error is not None:
            yield "".join(traceback.format_exception(failure.finding.error)[-4:])[-1500:]
        yield failure.program.source()
    total = report.programs.total()
    wrong = sum(f.count for _, f in failures if f.finding.rank == "wrong")
    bare = sum(f.count for _, f in failures if f.finding.rank == "bare")
    yield (
        f"{total} programs in {took:.0f} s ({1e3 * took / max(1, total):.1f} ms each): "
        f"{wrong} wrong, {bare} bare errors, in {len(failures)} groups; "
        f"{report.refusals.total()} refusals"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--kind", choices=(*KINDS, "all"), default="all")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minimize", action="store_true", help="show failures as small programs")
    parser.add_argument("--torch", type=int, default=50, help="each nth file is read by torch, too")
    parser.add_argument("--ways", nargs="+", choices=(*WAYS, CAPTURED))
    parser.add_argument("--show", action="store_true", help="print the program of the first seed")
    options = parser.parse_args()
    quieten()
    kinds = list(KINDS) if options.kind == "all" else [options.kind]
    if options.show:
        program, findings = tried(kinds[options.seed % len(kinds)], options.seed, options)
        print(program.source(), *findings, sep="\n")
        return 0
    started = time.perf_counter()
    seeds = range(options.seed, options.seed + options.count)
    report = Report()
    if options.jobs == 1:
        report = run(options, kinds, seeds)
    else:
        step = max(1, min(1000, options.count // options.jobs))
        tasks = [(options, kinds, seeds[i : i + step]) for i in range(0, len(seeds), step)]
        from fuzz import __main__ as home  # not this script: others must find it by its name

        with multiprocessing.get_context("spawn").Pool(options.jobs) as pool:
            for part in pool.imap_unordered(home._job, tasks):
                report.merge(part)
    print("\n".join(told(report, time.perf_counter() - started)))
    return int(any(f.finding.is_failure for f in report.failures.values()))


if __name__ == "__main__":
    sys.exit(main())
