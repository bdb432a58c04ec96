"""Random programs through ONNX: captured, written, run in onnxruntime, and compared with eager,
call after call.

    python -m fuzz.onnx [--count 500] [--seed 0] [--kinds masks state ...] [--opset 23] [--flow]

With `--flow` they are those of `fuzz.flow`, with control flow on data, compared with the program
itself, which `fuzz.flow` compares with eager.

What export or the writer refuses is no fault, but counted; all else is a failure. State goes from
call to call, and what is written to inputs is compared as well.
"""

from __future__ import annotations

import argparse
import copy
import random
import sys
import warnings
from collections import Counter
from typing import Any

import torch
from torch import nn

import lostwax
from fuzz import flow, flow_programs, ways
from fuzz.generate import KINDS, generate
from lostwax.checking.onnx import list_inputs, list_results
from lostwax.errors import LostwaxError, OnnxError
from lostwax.onnx.runtime import LoadedModel


def judge(kind: str, seed: int, opset: int) -> tuple[str, str]:
    """What became of one program: a word, and more of it."""
    program = generate(kind, seed)
    script = program.compiled()
    try:
        return _judge(script.fresh(), program, opset)
    finally:
        script.forget()


def _judge(names: dict[str, Any], program: Any, opset: int) -> tuple[str, str]:
    try:
        subject = names["make"]()
        args, kwargs = names["inputs"](0)
        subject(*copy.deepcopy((args, kwargs))[0], **copy.deepcopy(kwargs))
        subject = names["make"]()
    except Exception as error:
        return "eager", str(error)
    dynamic = ways.spec(names, args, kwargs)
    try:
        exported = ways.export(subject, args, kwargs, dynamic, program.seed).program
    except (LostwaxError, RuntimeError, ValueError, TypeError, IndexError) as error:
        return "not exported", str(error).partition("\n")[0]  # what is bare is fuzz's own affair
    try:
        model = LoadedModel(exported.to_onnx(opset=opset), 1)
    except OnnxError as error:
        return "refused", " ".join(str(error).split())[:200]
    except Exception as error:
        return "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return _compare(names, program, subject, exported, model)


def _compare(
    names: dict[str, Any], program: Any, subject: Any, exported: Any, model: LoadedModel
) -> tuple[str, str]:
    for i in range(program.calls if not program.changes else 1):
        try:
            args, kwargs = names["inputs"](i)
            theirs = copy.deepcopy((args, kwargs))
            given = list_inputs(exported, (args, kwargs))
            wanted = list_results(subject(*theirs[0], **theirs[1]))
        except Exception as error:
            return ("equal", "") if i else ("eager", str(error))
        if not _is_taken(exported, copy.deepcopy((args, kwargs))):
            return "equal", "to where the program itself refuses a call"
        try:
            got = [*model.run(dict(zip(model.inputs, given, strict=True))).values()]
        except Exception as error:
            return "failed", f"call {i}: {type(error).__name__}: {str(error)[:300]}"
        held = dict(subject.state_dict(keep_vars=True)) if isinstance(subject, nn.Module) else {}
        held |= dict(subject.named_buffers()) if isinstance(subject, nn.Module) else {}
        after = dict(zip(model.inputs, list_inputs(exported, theirs), strict=True))
        pairs = [*zip(got, wanted, strict=False)]
        pairs += [(x, (held | after)[n]) for n, x in model.state.items() if n in held | after]
        if len(got) != len(wanted):
            return "wrong", f"call {i}: {len(got)} results instead of {len(wanted)}"
        for at, (a, b) in enumerate(pairs):
            try:
                torch.testing.assert_close(a, b.detach(), rtol=1e-4, atol=1e-4, equal_nan=True)
            except AssertionError as error:
                return "wrong", f"call {i}, value {at}: {' '.join(str(error).split())[:200]}"
    return "equal", ""


def _is_taken(exported: Any, call: Any) -> bool:
    """Does the program itself take this call? A model has no guards."""
    try:
        exported.module()(*call[0], **call[1])
    except Exception:
        return False
    return True


def judge_flow(kind: str, seed: int, opset: int) -> tuple[str, str]:
    """What became of a program with control flow."""
    source = flow_programs.write_program(seed, kind)
    module = flow.make_class(source, f"{kind}_{seed}", flow.OPERATORS)()
    try:
        with flow.limit(60):
            exported = lostwax.export(module, tuple(_make_flow_call(0, kind)))
        runner = exported.module()
    except Exception as error:  # what is bare is the affair of fuzz.flow
        return "not exported", str(error).partition("\n")[0]
    try:
        model = LoadedModel(exported.to_onnx(opset=opset), 1)
    except OnnxError as error:
        return "refused", " ".join(str(error).split())[:200]
    order = [*range(len(flow.INPUTS)), *random.Random(seed).sample(range(len(flow.INPUTS)), 2)]
    for at, which in enumerate(order):
        call, theirs = _make_flow_call(which, kind), _make_flow_call(which, kind)
        try:
            with flow.limit(10), torch.no_grad():
                wanted = list_results(runner(*theirs))
        except Exception as error:
            return "equal", f"until the program raises: {error}"
        given = dict(zip(model.inputs, list_inputs(exported, (call, {})), strict=True))
        try:
            got = [*model.run(given).values()]
        except Exception as error:
            return "failed", f"call {at}: {type(error).__name__}: {str(error)[:300]}"
        held = dict(runner.named_buffers()) | dict(runner.named_parameters())
        held |= dict(zip(model.inputs, list_inputs(exported, (theirs, {})), strict=True))
        pairs = [*zip(got, wanted, strict=False)]
        pairs += [(x, held[name]) for name, x in model.state.items() if name in held]
        if len(got) != len(wanted):
            return "wrong", f"call {at}: {len(got)} results instead of {len(wanted)}"
        for i, (a, b) in enumerate(pairs):
            if not flow.is_same(b.detach(), a):
                return "wrong", f"call {at}, value {i}: {a}, the program: {b}"
    return "equal", ""


def _make_flow_call(which: int, kind: str) -> list[Any]:
    return flow.make_call(which, flow.make_cache() if kind == "cache" else None, False)[1]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.onnx", description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+")
    parser.add_argument("--flow", action="store_true")
    parser.add_argument("--opset", type=int, default=23)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    tally: Counter[str] = Counter()
    kinds = options.kinds or [*(flow_programs.KINDS if options.flow else KINDS)]
    for seed in range(options.seed, options.seed + options.count):
        kind = kinds[seed % len(kinds)]
        try:
            word, text = (judge_flow if options.flow else judge)(kind, seed, options.opset)
        except Exception as error:
            word, text = "failed", f"{type(error).__name__}: {str(error)[:300]}"
        tally[word] += 1
        if word in ("wrong", "failed", "refused"):
            print(f"{word:9} {kind} {seed}: {text}", flush=True)
    print(dict(tally))
    return int(bool(tally["wrong"] or tally["failed"]))


if __name__ == "__main__":
    sys.exit(main())
