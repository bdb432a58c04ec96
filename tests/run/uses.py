"""Uses of lostwax_run, where there is nothing but numpy. Prints JSON: what each of them found, or
the text of its error.

    python uses.py FOLDER
"""

from __future__ import annotations

import json
import resource
import sys
import threading
from pathlib import Path
from typing import Any

import numpy

import lostwax_run
from lostwax_run import Program


def main(folder: Path) -> None:
    results: dict[str, Any] = {}
    uses = [describe, refuse, damage, keep_state, own_results, lay_out, run_threads, map_batch]
    for use in [*uses, trace]:
        results |= use(folder)
    results["size"] = sum(f.stat().st_size for f in Path(lostwax_run.__file__).parent.rglob("*"))
    print(json.dumps(results, default=str))


def tell(call: Any, *args: Any, **options: Any) -> str:
    try:
        return f"no error: {call(*args, **options)}"
    except lostwax_run.RunError as error:
        return f"{type(error).__name__}: {error}"


def describe(folder: Path) -> dict[str, Any]:
    constants = Program(folder / "constants.pte")
    decoder = Program(folder / "decoder.pte")
    (tokens,) = decoder.methods["start"].inputs
    table = constants.constants["table"]
    return {
        "repr": repr(decoder),
        "ranges": tokens.ranges,
        "constants": {**constants.constants, "table": [table.dtype.name, table.tolist()]},
        "methods": [*constants.methods],
        "missing": constants.missing,
    }


def refuse(folder: Path) -> dict[str, str]:
    program = Program(folder / "beside.pte")
    forward = program.forward
    x = numpy.ones((3, 4), "float32")
    decoder = Program(folder / "decoder.pte")
    return {
        "dtype": tell(forward, x.astype("float64")),
        "shape": tell(forward, x[:2]),
        "dims": tell(forward, x[0]),
        "type": tell(forward, [1.0]),
        "count": tell(forward, x, x),
        "bound": tell(decoder.start, numpy.zeros(13, "int64")),
        "method": tell(program.run, x, method="backward"),
        "kernel": tell(program.run, method="forward"),
        "index": tell(decoder.forward, numpy.array([1]), numpy.array([99])),
        "after": tell(lambda: decoder.forward(numpy.array([1]), numpy.array([3]))[0].shape),
        "threads": tell(lostwax_run.set_threads, 0),
    }


def damage(folder: Path) -> dict[str, str]:
    data = (folder / "decoder.pte").read_bytes()
    quantized = (folder / "quantized.pte").read_bytes()
    beside, weights = ((folder / f"beside.{end}").read_bytes() for end in ("pte", "ptd"))
    return {
        "cut": tell(Program, data[:-100]),
        "cut in its tables": tell(Program, data[:500]),
        "cut weights": tell(Program, beside, weights[:-30]),
        "not a program": tell(Program, weights),
        "not weights": tell(Program, beside, beside),
        "empty": tell(Program, b""),
        "no weights": tell(lambda: Program(beside).forward(numpy.ones((3, 4), "float32"))),
        "another backend": tell(
            Program(quantized.replace(b"XnnpackBackend", b"OtherpuBackend")).forward,
            numpy.zeros((2, 3, 8, 8), "float32"),
        ),
        "another kernel": tell(
            lambda: Program(data.replace(b"aten::linear", b"mine::linear")).start(
                numpy.array([1, 2])
            )
        ),
    }


def keep_state(folder: Path) -> dict[str, Any]:
    """Methods of a program share their state; another session, or `reset`, has none of it."""
    program = Program(folder / "tally.pte")
    program.add(numpy.array([1, 2], "float32"))
    found = {"state": program.read()[0], "fresh state": program.session().read()[0]}
    program.reset()
    found["reset"] = program.read()[0]
    return {name: value.tolist() for name, value in found.items()}


def own_results(folder: Path) -> dict[str, Any]:
    forward = Program(folder / "beside.pte").forward
    (first,) = forward(numpy.ones((3, 4), "float32"))
    kept = first.copy()
    forward(numpy.zeros((3, 4), "float32"))
    return {"owned": bool(first.flags.owndata and first.flags.writeable and (first == kept).all())}


def lay_out(folder: Path) -> dict[str, bool]:
    """Arrays whatever their layout; only what is not as the method reads it is copied."""
    forward = Program(folder / "beside.pte").forward
    x = numpy.random.default_rng(0).random((4, 3), "float32")
    spread = numpy.zeros((6, 8), "float32")
    spread[::2, ::2] = x.T
    packed = numpy.zeros(49, "uint8")[1:].view("float32").reshape(3, 4)
    packed[:] = x.T
    (wanted,) = forward(numpy.ascontiguousarray(x.T))
    forms = {"transposed": x.T, "spread": spread[::2, ::2], "unaligned": packed}
    return {name: bool((forward(form)[0] == wanted).all()) for name, form in forms.items()}


def run_threads(folder: Path, calls: int = 1000) -> dict[str, Any]:
    """Threads that call one program, and sessions of it: the right results, and no memory kept."""
    program = Program(folder / "loop.pte")
    given = numpy.random.default_rng(0).random(3, "float32")
    wanted = [program.forward(given, numpy.array(n)) for n in range(4)]
    wrong: list[int] = []

    def work(mine: Program, count: int) -> None:
        for n in range(count):
            found = mine.forward(given, numpy.array(n % 4))
            if any((a != b).any() for a, b in zip(found, wanted[n % 4], strict=True)):
                wrong.append(n)

    def run(count: int) -> None:
        each = [program, program, program.session(), program.session()]
        threads = [threading.Thread(target=work, args=(p, count // 4)) for p in each]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    run(calls)
    before = resident()
    run(calls)
    return {"wrong results": wrong, "grown": resident() - before}


def trace(folder: Path) -> dict[str, Any]:
    """What a traced program gives: the same results, and an ETDump of its calls."""
    plain, file = Program(folder / "decoder.pte"), folder / "decoder.pte"
    given = numpy.array([1]), numpy.array([3])
    traced = Program(file, traced=True)
    same = [bool((traced.forward(*given)[0] == plain.forward(*given)[0]).all()) for _ in range(2)]
    dump = traced.take_trace()
    traced.forward(*given)
    with_values = Program(file, traced=True, traced_bytes=1 << 20)
    with_values.forward(*given)
    small = Program(file, traced=True, traced_bytes=64)
    return {
        "traced": all(same) and dump.dump[8:12] == b"ED00" and dump.values == b"",
        "traced again": len(traced.take_trace().dump) < len(dump.dump),
        "traced values": any(with_values.take_trace().values),
        "not traced": tell(plain.take_trace),
        "nothing traced": tell(traced.take_trace),
        "too small": tell(small.forward, *given),
        "no values": tell(Program, file, traced_bytes=64),
    }


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def map_batch(folder: Path) -> dict[str, bool]:
    arrays = numpy.load(folder / "unet-xnnpack.npz")
    calls = json.loads(str(arrays["calls"]))
    program = Program(folder / "unet-xnnpack.pte")
    batch = [[arrays[name] for name in call["inputs"]] for call in calls] * 4
    wanted = [[arrays[name] for name in call["results"]] for call in calls] * 4
    found = program.map(batch, sessions=3)
    return {"mapped": all((a[0] == b[0]).all() for a, b in zip(found, wanted, strict=True))}


if __name__ == "__main__":
    if len(sys.argv) > 2:
        print(json.dumps(run_threads(Path(sys.argv[1]), int(sys.argv[2]))))
    else:
        main(Path(sys.argv[1]))
