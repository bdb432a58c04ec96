"""`python -m tests.pte.sweep [operator ...]`: samples of `op_db` in the runtime, beside eager.

Each operator runs in a process of its own, since a kernel that gets what it does not expect ends
the process. Prints what differs, what ended the process, and which operators were refused.
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections import Counter
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

import lostwax
from lostwax.errors import LostwaxError
from tests.pte.runtime import Runtime, assert_close

DTYPES = (torch.float32, torch.int64, torch.bool)
COUNT = 6
"""The samples of each operator and dtype."""


def run_sample(op: Any, sample: Any) -> str:
    """What became of a sample: "", or a word and the reason."""
    leaves, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    is_tensor = [isinstance(leaf, torch.Tensor) for leaf in leaves]
    tensors = [leaf.detach() for leaf, t in zip(leaves, is_tensor, strict=True) if t]
    if not tensors:
        return ""

    def compute(*given: Any) -> Any:
        left = iter(given)
        filled = [next(left) if t else leaf for leaf, t in zip(leaves, is_tensor, strict=True)]
        first, args, kwargs = tree_unflatten(filled, spec)
        return op(first, *args, **kwargs)

    try:
        with torch.no_grad():
            wanted = tree_flatten(compute(*[t.clone() for t in tensors]))[0]
        program = lostwax.export(compute, tuple(tensors))
    except Exception:
        return ""  # a sample that is not exported is not ours here
    try:
        buffer = program.to_edge().to_executable().buffer
    except LostwaxError as error:
        return "refused: " + str(error).splitlines()[0]
    try:
        runtime = Runtime(buffer)
        for _ in range(2):  # the second time, memory holds what the first has left there
            assert_close(runtime(*[t.contiguous() for t in tensors]), wanted)
    except (AssertionError, RuntimeError) as error:
        what = " ".join(str(error).split())[:150]
        listing = lostwax.pte.dump(buffer).split("= ")
        kernels = [part.split("(")[0] for part in listing[1:]]
        word = "failed" if isinstance(error, RuntimeError) else "differs"
        return f"{word}: {what} {kernels}"
    return "same"


def run_operator(info: Any) -> list[str]:
    found = []
    for dtype in DTYPES:
        if dtype not in info.dtypes:
            continue
        try:
            samples = list(itertools.islice(info.sample_inputs("cpu", dtype), COUNT))
        except Exception:
            continue
        for sample in samples:
            outcome = run_sample(info.op, sample)
            if outcome:
                found.append(f"{dtype}: {outcome}" if outcome != "same" else outcome)
    return found


def main(names: list[str]) -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    counts: Counter[str] = Counter()
    for info in op_db:
        if names and info.name not in names:
            continue
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 2)
            os.write(write, "\n".join(run_operator(info)).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            lines = pipe.read().splitlines()
        if os.waitpid(child, 0)[1]:
            lines.append("ended the process")
        for line, times in Counter(lines).items():
            counts[line.split(": ")[1] if ": " in line else line] += times
            if line != "same":
                print(f"{info.name} {info.variant_test_name}: {line} ×{times}", flush=True)
    print(dict(counts))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    main(sys.argv[1:])
