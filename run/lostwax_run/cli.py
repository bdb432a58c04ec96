"""`lostwax-run`: a program once, with inputs from files; or what is in it. Loads neither numpy nor
the runtime for `--help`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

from lostwax_run.errors import InputError, RunError

if TYPE_CHECKING:
    from lostwax_run.program import Program

DONE, WRONG_LINE, REFUSED = 0, 2, 3


def main(words: Sequence[str] | None = None) -> int:
    given = _make_parser().parse_args(words)
    error = None
    try:
        result, text = _work(given)
        code = DONE
    except (RunError, OSError, ValueError) as problem:
        result, text, error = None, "", f"{problem}"
        code = WRONG_LINE if isinstance(problem, (OSError, InputError)) else REFUSED
    if given.json:
        answer = {"command": "run", "exit": code, "result": result, "error": error}
        print(json.dumps(answer, indent=2))
    elif error is not None:
        print(f"error: {error}", file=sys.stderr)
    else:
        print(text)
    return code


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lostwax-run",
        description="Runs a .pte program of ExecuTorch once, with inputs from files; without them "
        "it says what the program takes. Exit codes: 0 done, 2 a wrong line or input, 3 refused.",
    )
    add = parser.add_argument
    add("file", help="the program, model.pte; its weights may be beside it, in model.ptd")
    add("-i", "--input", action="append", default=[], metavar="X.npy", help="one for each input")
    add("-m", "--method", default="forward", help="the method to call (forward)")
    add("-o", "--output", metavar="Y.npy", help="where results go: .npy for one, .npz for more")
    add("-w", "--weights", metavar="W.ptd", help="the file with weights, if it is elsewhere")
    add("-t", "--threads", type=int, help="how many threads compute")
    add("--json", action="store_true", help="print one JSON object")
    return parser


def _work(given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    from lostwax_run.program import Program, set_threads

    if given.threads is not None:
        set_threads(given.threads)
    program = Program(given.file, given.weights)
    if not given.input and (
        given.method not in program.methods or program.describe(given.method).inputs
    ):
        return _describe(program)
    return _run(program, given)


def _describe(program: Program) -> tuple[dict[str, Any], str]:
    methods = {
        name: {
            "inputs": [str(each) for each in method.inputs],
            "outputs": [str(each) for each in method.outputs],
            "backends": list(method.description.backends),
            "memory": sum(method.description.arenas),
        }
        for name, method in program.methods.items()
    }
    constants = {name: _plain(value) for name, value in program.constants.items()}
    lines = [
        f"{method!r}, {sum(method.description.arenas):,} bytes of memory"
        for method in program.methods.values()
    ]
    lines += [f"{name} = {value}" for name, value in constants.items()]
    lines += [f"missing: {name}" for name in program.missing]
    found = {"methods": methods, "constants": constants, "missing": list(program.missing)}
    return found, "\n".join(lines)


def _run(program: Program, given: argparse.Namespace) -> tuple[dict[str, Any], str]:
    inputs = [_read(file) for file in given.input]
    start = time.perf_counter()
    results = program.run(*inputs, method=given.method)
    seconds = time.perf_counter() - start
    if given.output:
        _write(results, given.output)
    described = [_describe_value(value) for value in results]
    lines = [each["text"] for each in described]
    lines += [f"written to {given.output}"] if given.output else []
    return {"seconds": seconds, "results": described, "file": given.output}, "\n".join(lines)


def _read(file: str) -> Any:
    import numpy

    try:
        return numpy.load(file, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise InputError(
            f"--input {file!r} cannot be read: it is damaged, or no array of numbers\n"
            "  instead: a file that numpy.save wrote"
        ) from error


def _write(results: Sequence[Any], output: str) -> None:
    """Under another name first: a file is whole, or is not there."""
    import numpy

    if not output.endswith(".npz") and len(results) != 1:
        raise InputError(
            f"-o {output!r} holds one result, and there are {len(results)}\n  instead: a .npz file"
        )

    def write(opened: IO[bytes]) -> None:
        if output.endswith(".npz"):
            numpy.savez(opened, **{f"result_{at}": value for at, value in enumerate(results)})
        else:
            numpy.save(opened, results[0])

    temporary = f"{output}.{os.getpid()}.tmp"
    try:
        with open(temporary, "xb") as opened:
            write(opened)
        os.replace(temporary, output)
    finally:
        if os.path.exists(temporary):
            os.remove(temporary)


def _describe_value(value: Any) -> dict[str, Any]:
    if not hasattr(value, "dtype"):
        return {"type": type(value).__name__, "text": repr(value)}
    kind = f"{value.dtype.name}[{', '.join(map(str, value.shape))}]"
    record: dict[str, Any] = {"type": kind, "text": kind}
    if value.size and value.dtype.kind != "c":
        plain = value.astype("float64")
        record |= {
            "min": float(plain.min()),
            "mean": float(plain.mean()),
            "max": float(plain.max()),
        }
        record["text"] += " min {min:.4g}, mean {mean:.4g}, max {max:.4g}".format(**record)
    return record


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value


if __name__ == "__main__":
    sys.exit(main())
