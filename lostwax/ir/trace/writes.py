"""How operators that write are recorded: by what they compute, which is then the new value of what
they write to.

Must not decide whether a write is allowed (capture and decomposition do), nor how a new value
reaches the storage: `recorder.py` does.
"""

from __future__ import annotations

from typing import Any

import torch

from lostwax.fake.tensor import FakeTensor
from lostwax.fake.write import (
    add_defaults,
    check_cast,
    check_fits,
    factory_options,
    flatten,
    written_arguments,
)
from lostwax.ir.trace.recorder import Recorder
from lostwax.ir.trace.strided_copy import cast_like, copy_like
from lostwax.ir.trace.views import is_blank, is_scattered
from lostwax.ops.registry import Operator, aten


def record_write(recorder: Recorder, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    """Record an operator that has a functional twin, by that."""
    assert record.twin is not None
    if record.kind == "out":
        return _write_out(recorder, record, args, kwargs)
    targets = [recorder.adopt(t) for t in flatten(written_arguments(record, args, kwargs))]
    out = recorder.evaluate(record.twin, args, add_defaults(record, args, kwargs))
    results = flatten([out])
    own = len(record.results) if record.kind == "mixed" else 0
    for target, new in zip(targets, results[own:], strict=record.kind == "mixed"):
        check_fits(target.fake_type, new.fake_type)
        recorder.write(target, new)
    if record.kind == "mixed":
        return results[0] if own == 1 else tuple(results[:own])
    if not record.results:
        return None
    return targets[0] if len(record.results) == 1 else tuple(targets)


def _write_out(recorder: Recorder, record: Operator, args: Any, kwargs: dict[str, Any]) -> Any:
    outs = [recorder.adopt(o) for o in flatten([kwargs[name] for name in record.out_names])]
    inputs = {k: v for k, v in kwargs.items() if k not in record.out_names}
    inputs.update(factory_options(record, outs[0], args, inputs))
    results = flatten([recorder.evaluate(record.twin, args, inputs)])  # type: ignore[arg-type]
    for target, new in zip(outs, results, strict=True):
        check_cast(target.fake_type, new.fake_type)
        if target.fake_type.size == new.fake_type.size:
            recorder.write(target, new)
        elif is_blank(target.tracked):
            recorder.become(target, new)
        else:
            recorder.refuse(
                f"out= has size {tuple(target.fake_type.size)}, the result "
                f"{tuple(new.fake_type.size)}: resizing cannot be captured",
                "drop out= and use the returned tensor",
            )
    if not record.results:
        return None
    return outs[0] if len(outs) == 1 else tuple(outs)


def copy_into(recorder: Recorder, target: FakeTensor, source: Any) -> FakeTensor:
    """Record `target.copy_(source)`: all of the target is the source, cast and expanded. (The
    functional twin, `aten.copy`, has no derivative.)"""
    if isinstance(source, torch.Tensor):
        recorder.compute(aten.copy.default, (target, source), {})  # raises what eager raises
        form = cast_like if is_scattered(target.tracked) else copy_like
        new = form(recorder, recorder.adopt(source), target.fake_type)
    else:
        new = recorder.evaluate(aten.fill.Scalar, (target, source), {})
    recorder.write(target, new)
    return target
