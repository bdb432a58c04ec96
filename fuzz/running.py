"""The command line of fuzzers whose programs are numbered: many are judged, in several processes,
and what became of them is told.

    python -m fuzz.flow --count 30000 --seed 0 --jobs 16 --minutes 45

Ends when all are judged or the time is over; where it is killed, it says what it has found so far.
With `--results FILE` each is written down as it is found, and the same command goes on there.
A process that dies has judged a wrong program, and another goes on behind it. The last line has the
sums, and the seeds of what was wrong. Must not know what programs are.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import wait
from typing import Any, NamedTuple

OUTCOMES = ("right", "refused", "skipped", "checked", "lenient", "told", "limit", "unsure", "wrong")
_ALWAYS = ("right", "refused", "skipped", "wrong")
_EXPLAINED = ("refused", "checked", "told", "limit", "unsure")
Judge = Callable[..., tuple[str, str]]
_BETWEEN = 15
"""So many seconds lie between two lines of progress."""
_GRACE = 120
"""So many seconds after the end processes are stopped: an export may take one minute."""


class Judged(NamedTuple):
    kind: str
    seed: int
    outcome: str
    text: str


def main(
    judge: Judge,
    write: Callable[..., str],
    kinds: Sequence[str] = (),
    shrink: Callable[[int, str], str] | None = None,
) -> int:
    """Judge programs as the command line says; 1 if any was wrong."""
    options = _parse(kinds)
    own = [(kind,) for kind in options.kinds or kinds] or [()]
    numbers = range(options.seed, options.seed + options.count)
    programs = [(seed, *own[seed % len(own)]) for seed in numbers]
    if options.show:
        with _quietly():
            for each in programs:
                print(f"# {each}", write(*each), *judge(*each), sep="\n", flush=True)
        return 0
    stopped = list[int]()

    def stop(number: int, _: Any) -> None:
        stopped.append(number)
        raise KeyboardInterrupt  # which a program that is judged here may catch

    signal.signal(signal.SIGTERM, stop)
    started = time.time()
    found = _read_results(options.results, programs)
    known = {(each.seed, each.kind) for each in found}
    left = [each for each in programs if (each[0], _kind_of(each)) not in known]
    last = started
    with suppress(KeyboardInterrupt), _open_results(options.results) as results:
        for each in judge_many(judge, left, options.jobs, started + options.seconds):
            found.append(each)
            if results is not None:
                print(json.dumps(each), file=results, flush=True)
            if each.outcome == "wrong":
                print(f"{each.kind} {each.seed}: {each.text}", flush=True)
                if options.minimize and shrink is not None:
                    with _quietly():
                        print(shrink(each.seed, each.kind), flush=True)
            if stopped:
                break
            if time.time() > last + _BETWEEN:
                last = time.time()
                print(_tell_progress(found, len(programs), last - started), file=sys.stderr)
    print(*tell(found, len(programs), time.time() - started), sep="\n")
    return int(any(each.outcome == "wrong" for each in found))


def _read_results(path: str | None, programs: list[tuple[Any, ...]]) -> list[Judged]:
    """What an earlier run has found of these programs. The last line may be a part of one."""
    if path is None or not os.path.exists(path):
        return []
    wanted = {(each[0], _kind_of(each)) for each in programs}
    found = list[Judged]()
    with open(path) as lines:
        for line in lines:
            with suppress(ValueError):
                found.append(Judged(*json.loads(line)))
    return [each for each in found if (each.seed, each.kind) in wanted]


def _open_results(path: str | None) -> Any:
    return nullcontext() if path is None else open(path, "a")


def _tell_progress(found: list[Judged], wanted: int, took: float) -> str:
    wrong = sum(each.outcome == "wrong" for each in found)
    return f"{len(found)} of {wanted} in {took:.0f} s, {wrong} wrong"


def _parse(kinds: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60, help="end then, whatever is left")
    parser.add_argument("--seconds", type=float, help="the same in seconds")
    parser.add_argument("--results", help="a file to which each is added; those in it are done")
    parser.add_argument("--kinds", nargs="+", choices=[*kinds], help="they take turns")
    parser.add_argument("--show", action="store_true", help="print the programs")
    parser.add_argument("--minimize", action="store_true", help="print wrong ones, made smaller")
    options = parser.parse_args()
    if options.seconds is None:
        options.seconds = 60 * options.minutes
    return options


@contextmanager
def _quietly() -> Iterator[None]:
    """One thread, and no warnings; what was so before is so again."""
    torch = sys.modules.get("torch")
    threads = torch.get_num_threads() if torch else 0
    disabled = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        if torch:
            torch.set_num_threads(1)
        try:
            yield
        finally:
            logging.disable(disabled)
            if torch:
                torch.set_num_threads(threads)


# --------------------------------------------------------------------------------------- processes


def judge_many(
    judge: Judge, programs: list[tuple[Any, ...]], jobs: int, deadline: float
) -> Iterator[Judged]:
    """What becomes of the programs, as it is known."""
    if jobs == 1:
        for each in programs:
            if time.time() < deadline:
                with _quietly():
                    found = _judge_one(judge, each)
                yield found
        return
    working = dict(_begin(judge, programs[i::jobs], deadline) for i in range(jobs))
    while working:
        for reader in wait([*working], timeout=1):
            process, left = working[reader]
            try:
                yield reader.recv()
                left.pop(0)
            except EOFError:
                del working[reader]
                process.join()
                if process.exitcode and left:
                    died = f"the process died ({process.exitcode})"
                    yield Judged(_kind_of(left[0]), left[0][0], "wrong", died)
                    working |= [_begin(judge, left[1:], deadline)]
        if time.time() > deadline + _GRACE:
            for process, _ in working.values():
                process.kill()
            return


def _begin(judge: Judge, programs: list[Any], deadline: float) -> tuple[Any, tuple[Any, list[Any]]]:
    """A process that judges them, and from where what it finds is read."""
    context = multiprocessing.get_context("spawn")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(judge, programs, deadline, writer), daemon=True)
    process.start()
    writer.close()
    return reader, (process, [*programs])


def _work(judge: Judge, programs: list[tuple[Any, ...]], deadline: float, writer: Any) -> None:
    with _quietly():
        for each in programs:
            if time.time() > deadline:
                break
            writer.send(_judge_one(judge, each))


def _judge_one(judge: Judge, program: tuple[Any, ...]) -> Judged:
    outcome, text = judge(*program)
    return Judged(_kind_of(program), program[0], outcome, text)


def _kind_of(program: tuple[Any, ...]) -> str:
    return str(program[1]) if len(program) > 1 else ""


# ---------------------------------------------------------------------------------------- the sums


def tell(found: list[Judged], wanted: int, took: float) -> Iterator[str]:
    """A table by kinds, the refusals by their text, and the line of sums."""
    names = [name for name in OUTCOMES if any(each.outcome == name for each in found)]
    counts = Counter((each.kind, each.outcome) for each in found)
    yield f"{'kind':<12}" + "".join(f"{name:>9}" for name in names)
    for kind in sorted({each.kind for each in found}):
        yield f"{kind:<12}" + "".join(f"{counts[kind, name]:>9}" for name in names)
    texts = Counter((each.outcome, each.text) for each in found if each.outcome in _EXPLAINED)
    for (outcome, text), count in texts.most_common(40):
        yield f"{count:6} {outcome}: {text[:200]}"
    if len(found) < wanted:
        yield f"{wanted - len(found)} programs were not judged: the time is over"
    sums = Counter(each.outcome for each in found)
    told = ", ".join(f"{sums[n]} {n}" for n in OUTCOMES if n in (*_ALWAYS, *sums))
    wrong = [f"{each.kind} {each.seed}".strip() for each in found if each.outcome == "wrong"]
    yield (
        f"{len(found)} programs in {took:.0f} s ({len(found) / max(took, 1e-9):.1f} a second): "
        f"{told}; wrong: {', '.join(wrong) or 'none'}"
    )
