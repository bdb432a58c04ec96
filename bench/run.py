"""lostwax-run: what a program costs where there is no torch.

    python -m bench.run [--mutations 20000] [--calls 100000]

Builds the wheel of run/, installs it with numpy into an empty environment, and measures there: the
import in fresh processes, processor time, of which the least counts; the size; a call of a tiny
program from Python, less what the same call takes from a loop in C; memory after calls from four
threads; calls of all cases beside ExecuTorch's own Python of the same version, bit for bit; damaged
files. The bars: import 60 ms without torch, 25 MB, 10 µs, nothing that stays, no bit, no end of the
process. Exits with 1 when one is missed. It needs a C++ compiler and ExecuTorch's wheel from a
registry.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.run.environment import ROOT, Installed, install, write_cases

TINY = "constants"
"""One input, one kernel, one result; the other program has two of each, and control flow."""
IMPORT_BAR, SIZE_BAR, CALL_BAR, GROWTH_BAR = 60.0, 25 << 20, 10.0, 2 << 20
TESTS = ROOT / "tests" / "run"

LOOP = """
#include <stddef.h>
typedef int Call(void*, void*, size_t, void*, size_t);
void loop(Call* call, void* method, void* in, size_t n, void* out, size_t m, long times) {
  while (times--) call(method, in, n, out, m);
}
"""

IMPORT = """
import sys, time
start = time.process_time()
{line}
print((time.process_time() - start) * 1e3, "torch" in sys.modules)
"""

CALL = """
import ctypes, json, sys, time
import numpy
from lostwax_run import Program
from lostwax_run.runtime import load_library

loop = ctypes.CDLL(sys.argv[2]).loop
found = {}
for name in ("constants", "loop"):
    arrays = numpy.load(f"{sys.argv[1]}/{name}.npz")
    call = json.loads(str(arrays["calls"]))[0]
    inputs = [arrays[each] for each in call["inputs"]]
    program = Program(f"{sys.argv[1]}/{name}.pte", alone=True)
    method = program.forward
    method(*inputs)
    handle = program._session.load("forward")
    rows = [method._inputs, len(inputs), method._results, len(method.outputs)]
    size = ctypes.c_size_t

    def from_c(times):
        run = ctypes.cast(load_library().run_call, ctypes.c_void_p)
        loop(run, handle, rows[0], size(rows[1]), rows[2], size(rows[3]), ctypes.c_long(times))

    def from_python(times):
        for _ in range(times):
            method(*inputs)

    best = [1e9, 1e9]
    for _ in range(400):
        for at, work in enumerate((from_python, from_c)):
            start = time.perf_counter()
            work(20)
            best[at] = min(best[at], (time.perf_counter() - start) / 20 * 1e6)
    found[name] = best
print(json.dumps(found))
"""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mutations", type=int, default=20_000)
    parser.add_argument("--calls", type=int, default=100_000)
    given = parser.parse_args()
    installed = install()
    missed = measure_import(installed) + measure_size(installed)
    with tempfile.TemporaryDirectory() as folder:
        cases = Path(folder)
        write_cases(installed, cases)
        missed += compare_bits(installed, cases) + measure_calls(installed, cases)
        missed += count_memory(installed, cases, given.calls)
        missed += damage(installed, cases, given.mutations)
    for text in missed:
        print("MISSED", text)
    return bool(missed)


def measure_import(installed: Installed) -> list[str]:
    lines = {"import lostwax_run": 0.0, "import numpy": 0.0, "from lostwax_run import Program": 0.0}
    for line in lines:
        runs = [installed.run("-c", IMPORT.format(line=line)).stdout.split() for _ in range(15)]
        lines[line] = min(float(ms) for ms, _ in runs)
        assert all(torch == "False" for _, torch in runs)
    for line, ms in lines.items():
        print(f"{line}: {ms:.1f} ms")
    return judge("import, ms", lines["import lostwax_run"], IMPORT_BAR)


def measure_size(installed: Installed) -> list[str]:
    files = (installed.site / "lostwax_run").rglob("*")
    size = sum(file.stat().st_size for file in files if file.is_file())
    print(f"installed: {size:,} bytes; the wheel {installed.wheel.stat().st_size:,}")
    return judge("bytes", size, SIZE_BAR)


def compare_bits(installed: Installed, cases: Path) -> list[str]:
    found = json.loads(installed.run(TESTS / "replay.py", cases).stdout)["cases"]
    differ = {name: told for name, told in found.items() if told}
    print(f"{len(found)} programs, {len(differ)} differ from ExecuTorch's Python in some bit")
    return [f"{name}: {told}" for name, told in differ.items()]


def measure_calls(installed: Installed, cases: Path) -> list[str]:
    source, library = cases / "loop.c", cases / "loop.so"
    source.write_text(LOOP)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", source, "-o", library], check=True)
    found = json.loads(installed.run("-c", CALL, cases, library).stdout)
    missed = []
    for name, (ours, theirs) in found.items():
        print(f"a call of {name}: {ours:.1f} µs, {theirs:.1f} µs from C")
        if name == TINY:
            missed += judge(f"µs over the runtime's for {name}", ours - theirs, CALL_BAR)
    return missed


def count_memory(installed: Installed, cases: Path, calls: int) -> list[str]:
    told: dict[str, Any] = json.loads(installed.run(TESTS / "uses.py", cases, calls).stdout)
    print(f"{calls:,} calls from 4 threads: {told['grown']:,} bytes more, {told['wrong results']}")
    return judge("bytes more", told["grown"], GROWTH_BAR) + [str(e) for e in told["wrong results"]]


def damage(installed: Installed, cases: Path, count: int) -> list[str]:
    told = json.loads(installed.run(TESTS / "mutate.py", cases, count).stdout)
    print(f"{count:,} damaged files: {told['outcomes']}")
    return [str(each) for each in told["found"]]


def judge(what: str, value: float, bar: float) -> list[str]:
    return [f"{what}: {value:.1f}, more than {bar:.1f}"] if value > bar else []


if __name__ == "__main__":
    sys.exit(main())
