"""Damages the files of cases (tests/run/cases.py) and runs them with lostwax_run, where there is
nothing but numpy: what comes is an error of lostwax_run's or an answer, and never the end of the
process. Prints JSON: how often each came, and what was found.

    python mutate.py FOLDER COUNT [SEED]

Each file is made of its number alone, so that `python mutate.py FOLDER --one NUMBER` does it again.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy

from lostwax_run import Program, RunError

SECONDS = 20
MEMORY = 4 << 30
EDGES = (0, 1, 2, 3, 4, 7, 16, 255, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def main(folder: Path, count: int, seed: int) -> None:
    found, ended = Counter(), []
    start, end = seed, seed + count
    while start < end:
        command = [sys.executable, __file__, str(folder), "--from", str(start), str(end)]
        done = subprocess.run(command, capture_output=True, text=True)
        lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
        for number, outcome in lines:
            start = int(number) + 1
            found[outcome.partition(":")[0]] += 1
            if outcome.startswith("bug"):
                ended.append(f"{number} {outcome}")
        if done.returncode:
            kind = "hang" if done.returncode == -signal.SIGVTALRM else "crash"
            found[kind] += 1
            ended.append(f"{start} {kind} {done.returncode} {done.stderr[-300:]}")
            start += 1
    print(json.dumps({"outcomes": found, "found": ended}))


def try_range(folder: Path, start: int, end: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    cases = load_cases(folder)
    for number in range(start, end):
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)  # of processor time
        print(number, try_one(cases, number), flush=True)


def load_cases(folder: Path) -> list[tuple]:
    cases = []
    for path in sorted(folder.glob("*.npz")):
        arrays = numpy.load(path)
        calls = [
            (
                call["method"],
                [arrays[n] for n in call["inputs"]],
                [arrays[n] for n in call["results"]],
            )
            for call in json.loads(str(arrays["calls"]))[:2]
        ]
        beside = path.with_suffix(".ptd")
        weights = beside.read_bytes() if beside.exists() else None
        data, scalars = path.with_suffix(".pte").read_bytes(), arrays["scalars"].tolist()
        cases.append((path.stem, data, weights, calls, scalars))
    return cases


def try_one(cases: list[tuple], number: int) -> str:
    draw = random.Random(number)
    name, data, weights, calls, scalars = draw.choice(cases)
    if weights is not None and draw.random() < 0.4:
        weights = damage(weights, draw)
    elif draw.random() < 0.3:
        data = damage(data, draw)
    else:
        data = change_scalars(data, scalars, draw)
    try:
        program = Program(data, weights, alone=True)
        results = [program.run(*inputs, method=method) for method, inputs, _ in calls]
        program.constants  # noqa: B018
    except RunError:
        return "error"
    except Exception as error:
        return f"bug: {name}: {error!r}"
    wanted = [results for _, _, results in calls]
    is_same = all(
        len(a) == len(b) and all(numpy.array_equal(x, y) for x, y in zip(a, b, strict=True))
        for a, b in zip(results, wanted, strict=True)
    )
    return "same answer" if is_same else "other answer"


def damage(data: bytes, draw: random.Random) -> bytes:
    changed = bytearray(data)
    if draw.random() < 0.04:
        return bytes(changed[: draw.randrange(len(data))])
    places = list_places(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        start, end = draw.choice(places)
        at = draw.randrange(start, max(start + 1, end - 4))
        aligned = at & ~3
        (word,) = struct.unpack_from("<I", changed, aligned)
        (other,) = struct.unpack_from(
            "<I", changed, draw.randrange(start, max(start + 1, end - 4)) & ~3
        )
        kind = draw.randrange(7)
        if kind == 0:
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            changed[at] = draw.randrange(256)
        elif kind == 2:
            size = draw.randrange(1, 32)
            changed[at : at + size] = bytes(len(changed[at : at + size]))
        else:
            edge = draw.choice(EDGES)
            step = draw.choice((1, 2, 4, 8, 16, 64))
            value = {3: edge, 4: word + step, 5: word - step, 6: other}[kind]
            struct.pack_into("<I", changed, aligned, value & 0xFFFFFFFF)
    return bytes(changed)


def change_scalars(data: bytes, scalars: list[tuple[int, int]], draw: random.Random) -> bytes:
    """Tables that are sound, with other numbers in them."""
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        at, size = draw.choice(scalars)
        value = int.from_bytes(changed[at : at + size], "little")
        other_at, other_size = draw.choice(scalars)
        other = int.from_bytes(changed[other_at : other_at + other_size], "little")
        step = draw.choice((1, 2, 3, 8, 64, 1000))
        value = draw.choice((value + step, value - step, other, draw.choice(EDGES), value * 2, -1))
        changed[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(changed)


def list_places(data: bytes) -> list[tuple[int, int]]:
    """The tables of the program, and those of each payload of XNNPACK's; and everything."""
    places = [(0, min(len(data), struct.unpack_from("<Q", data, 16)[0]))] * 6
    at = data.find(b"XH00")
    while at >= 0:
        offset, size = struct.unpack_from("<II", data, at + 6)
        places += [(at, min(len(data), at - 4 + offset + size))] * 2
        at = data.find(b"XH00", at + 1)
    return [(a, b) for a, b in [*places, (0, len(data))] if b - a > 8]


if __name__ == "__main__":
    folder, *rest = sys.argv[1:]
    if rest[0] == "--from":
        try_range(Path(folder), int(rest[1]), int(rest[2]))
    elif rest[0] == "--one":
        print(try_one(load_cases(Path(folder)), int(rest[1])))
    else:
        main(Path(folder), int(rest[0]), int(rest[1]) if len(rest) > 1 else 0)
