"""`lostwax bench` and `profile`: how long a program takes, beside it the model in eager, and where
the time goes."""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree

from lostwax.cli.models.factories import build_model
from lostwax.cli.models.names import Building
from lostwax.cli.outcome import CommandOutcome
from lostwax.cli.programs import load_program, reading, write_count
from lostwax.cli.progress import show_status
from lostwax.cli.running import list_in_order, match_inputs, prepare_call, read_inputs
from lostwax.cli.wording import in_options
from lostwax.errors import CommandError
from lostwax.profiling.eager import profile_program
from lostwax.profiling.executable import profile_executable
from lostwax.profiling.profile import (
    KINDS,
    Profile,
    compare_profiles,
    profile_from_json,
    write_comparison,
    write_profile,
)
from lostwax.pte import load_runtime

WARM = 2
"""Calls before those that count: they make what is kept."""
_SHARES = {"median": 0.5, "p90": 0.9, "p99": 0.99}


def bench_file(
    file: str, spec: str, inputs: Sequence[str], building: Building, repeat: int, threads: int
) -> CommandOutcome:
    """Time the calls of a file, and of a model if one is given."""
    given = read_inputs(inputs)
    model = build_model(spec, building) if spec else None
    calls: dict[str, Callable[[], Any]] = {}
    is_executable = file.endswith(".pte")
    leaves = list_in_order(given, file) if is_executable else [value for _, value in given]
    if model is not None and not given:
        leaves = pytree.tree_leaves((model.args, model.kwargs))
    if is_executable:
        if not leaves:
            raise CommandError(
                "a .pte file has no example inputs\n  instead: --input x.npy, or a model, too"
            )
        with reading(file):
            runtime = load_runtime(file)
        calls["the runtime"] = lambda: runtime.run(leaves)
    else:
        program = load_program(file)
        calls["the program"] = prepare_call(program, given, file)
        leaves = pytree.tree_leaves(given or program.example_inputs)
    if model is not None:
        args, kwargs = model.args, model.kwargs
        if given:
            args, kwargs = match_inputs(given, len(args), [*kwargs])
        calls["eager"] = partial(model.module, *args, **kwargs)
    items = next((t.shape[0] for t in leaves if isinstance(t, torch.Tensor) and t.dim()), 1)
    with (
        _use_threads(threads) as used,
        torch.no_grad(),
        in_options(()),
        show_status(f"running {file}") as tell,
    ):
        times = time_calls(calls, repeat, tell)
    told = {name: describe_times(each, items) for name, each in times.items()}
    result = {"repeat": repeat, "threads": used, "items": items, "seconds": told}
    head = f"{write_count(repeat, 'call')} each, {write_count(used, 'thread')}, "
    lines = [head + write_count(items, "item") + " a call", *_write_times(told)]
    notes = []
    if threads and is_executable:
        notes.append("--threads is of eager: ExecuTorch's runtime has its own")
    return CommandOutcome(result, "\n".join(lines), notes=notes)


@contextmanager
def _use_threads(threads: int) -> Iterator[int]:
    before = torch.get_num_threads()
    if threads:
        torch.set_num_threads(threads)
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


def time_calls(
    calls: dict[str, Callable[[], Any]], repeat: int, tell: Callable[[str], None]
) -> dict[str, list[float]]:
    """They take turns, so that what else the machine does meets all of them."""
    waits = torch.accelerator.is_available()  # a call may be over before its work is
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-WARM, repeat):
        tell("warming up" if turn < 0 else f"{turn + 1} of {repeat}")
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if waits:
                torch.accelerator.synchronize()
            if turn >= 0:
                found[name].append(time.perf_counter() - start)
    return found


def describe_times(seconds: Sequence[float], items: int) -> dict[str, float]:
    """The middle of so many calls, the slow ones, and how much is done in a second."""
    ordered = sorted(seconds)
    mean = statistics.fmean(ordered)
    rank = {name: ordered[math.ceil(share * len(ordered)) - 1] for name, share in _SHARES.items()}
    rank["median"] = statistics.median(ordered)
    ends = {"least": ordered[0], "most": ordered[-1], "mean": mean}
    return {**rank, **ends, "calls_per_second": 1 / mean, "items_per_second": items / mean}


def _write_times(told: dict[str, dict[str, float]]) -> list[str]:
    wide = max(map(len, told))
    kinds = ("median", "p90", "p99", "least")
    lines = []
    for name, each in told.items():
        times = ", ".join(f"{kind} {1e3 * each[kind]:.3f} ms" for kind in kinds)
        rate = f"{each['calls_per_second']:,.1f} calls/s, {each['items_per_second']:,.1f} items/s"
        lines.append(f"{name:{wide}}: {times}; {rate}")
    return lines


# ------------------------------------------------------------------------------------ where it goes


@dataclass(frozen=True)
class ProfileOptions:
    """How a file is run, and what is shown."""

    inputs: tuple[str, ...] = ()
    repeat: int = 20
    method: str = "forward"
    etdump: str | None = None
    record: str | None = None
    kinds: tuple[str, ...] = KINDS
    most: int = 12


def profile_files(file: str, other: str | None, options: ProfileOptions) -> CommandOutcome:
    """Where the time of a file goes; with another, what changed."""
    one = _profile(file, options)
    notes = [*one.notes]
    if other is None:
        text = write_profile(one, options.kinds, options.most)
        return CommandOutcome({"profile": one.to_json()}, text, notes=notes)
    two = _profile(other, options)
    result = {"profile": one.to_json(), "other": two.to_json()}
    result["changes"] = compare_profiles(one, two)
    notes += [note for note in two.notes if note not in notes]
    text = write_comparison(one, two, options.kinds, options.most)
    return CommandOutcome(result, text, notes=notes)


def _profile(file: str, options: ProfileOptions) -> Profile:
    if file.endswith(".json"):
        return profile_from_json(_read_json(file))
    given = read_inputs(options.inputs)
    with show_status(f"running {file}"), reading(file):
        if file.endswith(".pte"):
            return profile_executable(
                file,
                list_in_order(given, file) or None,
                method=options.method,
                calls=options.repeat,
                etdump=options.etdump,
                record=options.record,
            )
    if options.etdump or options.record:
        raise CommandError("--etdump and --record are of .pte files")
    program = load_program(file)
    example: Any = program.example_inputs
    if example is None and not given:
        raise CommandError(f"{file} has no example inputs\n  instead: --input x.pt")
    if given:
        args, kwargs = example or ((), {})
        example = match_inputs(given, len(args), [*kwargs])
    with show_status(f"running {file}"):
        return profile_program(program, example, Path(file).name, options.repeat)


def _read_json(file: str) -> Any:
    try:
        return json.loads(Path(file).read_text("utf-8"))
    except ValueError as error:
        raise CommandError(
            f"{file} is no JSON: {error}\n  instead: what lostwax profile --json prints"
        ) from error


def read_kinds(text: str | None) -> Sequence[str]:
    """The tables that are shown."""
    if text is None:
        return KINDS
    if text not in KINDS:
        raise CommandError(f"--by {text}: it is one of {', '.join(KINDS)}")
    return (text,)
