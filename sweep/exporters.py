"""Exports the models for which `transformers.exporters` patches transformers, with no patch.

    python -m sweep.exporters [--only qwen2_vl minicpm ...] [--markdown] [--traceback]

Each is exported in five ways, and each program is compared with the module, with gradients, for the
example's images and for others that it may be called with:

fixed     the module's own call, for images of fixed sizes: they are numbers of Python's
prepared  the same, with `cu_seqlens` and the like computed before, which these models allow
lengths   `cu_seqlens` and the like are inputs: what they say varies; `attn_implementation="eager"`
dynamic   the same, and the number of patches varies
sdpa      as `lengths`, with the default attention

The table has "ok", or "data" where the model's Python needs to know data (refused, with the line),
"-" where no size varies, or what else was raised. Exits with 1 if a program is wrong, or if
something is refused for another reason than data.

    python -m sweep.exporters --tests ../transformers/tests [--only llama t5 ...] [--first]
                              [--ways static dynamic pte ...] [--limit 100]

runs instead all architectures that have a tester in transformers' own tests through our backend
(`lostwax.interop.transformers`), and says for each what their `tests/exporters` skips or does not
compare: "values" of torch.export's programs, "names" of ONNX's, "count" of ExecuTorch's. It needs
transformers 5.23 with the folder `tests` of a checkout of about that version, `parameterized` and
`httpx`. For each way: "ok" (", batch": with the batch doubled, too), "refused", "wrong", "error"
(no refusal of ours), "time", "eager" (the tester fails itself), "-". Exits with 1 at "wrong" or
"error".
"""

from __future__ import annotations

import argparse
import copy
import gc
import os
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lostwax import Dim, export
from lostwax.errors import DataDependentError
from sweep import testers
from sweep.compare import check, run
from sweep.dynamic import aligned
from sweep.encoders import ENCODERS, EXAMPLE, OTHERS, Encoder, Sizes, build
from sweep.libraries import import_torchvision, load_transformers

WAYS = ("fixed", "prepared", "lengths", "dynamic", "sdpa")


@dataclass
class Row:
    """What became of one model."""

    encoder: Encoder
    patched: list[str]
    """What transformers' exporter replaces of it."""
    found: dict[str, str] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)
    """How many calls were compared."""
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return set(self.found.values()) <= {"ok", "data", "-"}


class Fixed(nn.Module):
    """A model with inputs of whole numbers that are fixed: its images have always these sizes."""

    def __init__(self, model: nn.Module, inputs: dict[str, Any]) -> None:
        super().__init__()
        self.model = model
        self.numbers = {
            name: (value.tolist(), value.dtype) if isinstance(value, Tensor) else (value, None)
            for name, value in inputs.items()
            if not (isinstance(value, Tensor) and value.is_floating_point())
        }

    def forward(self, **inputs: Tensor) -> Any:
        numbers = {
            name: value if dtype is None else torch.tensor(value, dtype=dtype)
            for name, (value, dtype) in self.numbers.items()
        }
        return self.model(**inputs, **numbers)


class NothingVaries(Exception):
    """No size of an input may differ between images."""


def sweep(encoder: Encoder, ways: Sequence[str] = WAYS, *, verbose: bool = False) -> Row:
    row = Row(encoder, find_patches(encoder))
    torch.manual_seed(0)
    model = build(encoder)
    for way in ways:
        try:
            row.calls[way] = compare(encoder, model, way)
            row.found[way] = "ok"
        except NothingVaries:
            row.found[way] = "-"
        except Exception as error:
            is_data = isinstance(error, DataDependentError)
            row.found[way] = "data" if is_data else type(error).__name__
            lines = str(error).strip().splitlines()
            asked = [line.strip() for line in lines if line.strip().startswith("asked at ")]
            row.reasons[way] = " ".join([*lines[:1], *asked])
            if verbose:
                traceback.print_exception(error)
    return row


def compare(encoder: Encoder, model: nn.Module, way: str) -> int:
    """Export the model in this way, and compare. Returns for how many calls; raises what is
    wrong."""
    use_attention(model, "eager" if way in ("lengths", "dynamic") else "sdpa")
    if way in ("fixed", "prepared"):
        inputs = encoder.inputs(encoder, EXAMPLE) if way == "fixed" else prepare(encoder, model)
        fixed = Fixed(model, inputs)
        floats = {n: v for n, v in inputs.items() if n not in fixed.numbers}
        calls = [floats, {n: torch.randn_like(v) for n, v in floats.items()}]
        return compare_calls(fixed, export(fixed, (), floats), calls)
    first, *others = (prepare(encoder, model, sizes) for sizes in (EXAMPLE, *OTHERS))
    spec = find_dims(first, others[-1]) if way == "dynamic" else None
    program = export(model, (), first, dynamic_shapes=spec)
    fitting = [other for other in others if fits(other, first, spec)]
    calls = [first, prepare(encoder, model), *fitting]  # the second has other data
    return compare_calls(model, program, calls)


def use_attention(model: nn.Module, name: str) -> None:
    model.set_attn_implementation(name)  # type: ignore[operator]


def prepare(encoder: Encoder, model: nn.Module, sizes: Sizes = EXAMPLE) -> dict[str, Any]:
    """The inputs, and what models let one compute before the call: `cu_seqlens`, and the like."""
    inputs = encoder.inputs(encoder, sizes)
    tools = import_module("transformers.exporters.utils")
    tools.precompute_export_inputs(model, inputs)
    return {name: value for name, value in inputs.items() if value is not None}


def find_dims(first: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Dims for the sizes that differ between the calls. Numbers of patches are multiples of four,
    which are merged. Raises `NothingVaries` if there are none, or if a number of Python's differs,
    too, which is the program's own."""
    if any(isinstance(v, tuple) and v != other[n] for n, v in first.items()):
        raise NothingVaries
    dims: dict[tuple[int, int], Any] = {}

    def name_size(m: int, n: int) -> Any:
        merged = m % 4 == n % 4 == 0
        key = (m // 4, n // 4) if merged else (m, n)
        dim = dims.setdefault(key, Dim(f"many{len(dims)}", min=2))
        return 4 * dim if merged else dim

    spec = {
        name: {d: name_size(m, n) for d, (m, n) in pairs(value, other[name]) if m != n}
        for name, value in first.items()
        if isinstance(value, Tensor)
    }
    if not dims:
        raise NothingVaries
    return spec


def pairs(a: Tensor, b: Tensor) -> Iterator[tuple[int, tuple[int, int]]]:
    return enumerate(zip(a.shape, b.shape, strict=True))


def fits(call: dict[str, Any], first: dict[str, Any], spec: dict[str, Any] | None) -> bool:
    """May the program be called so?"""
    return all(
        all(d in (spec or {}).get(name, {}) or m == n for d, (m, n) in pairs(value, first[name]))
        if isinstance(value, Tensor)
        else value == first[name]
        for name, value in call.items()
    )


def compare_calls(model: nn.Module, program: Any, calls: Sequence[dict[str, Any]]) -> int:
    for call in calls:
        want = run(copy.deepcopy(model), (), call)
        got = run(program.module(), (), call)
        got.outputs = [aligned(a, b) for a, b in zip(got.outputs, want.outputs, strict=True)]
        check(got, want)
    return len(calls)


def find_patches(encoder: Encoder) -> list[str]:
    """What transformers' exporter replaces in the module of this model, by its registry."""
    import_module("transformers.exporters.exporter_dynamo")
    registry = import_module("transformers.exporters.utils")._PATCHES["dynamo"]
    inside = f"transformers.models.{encoder.module}."
    audio = "Audio" in encoder.name or "ASR" in encoder.name
    owners = [
        (path.rpartition(".")[2], attribute)
        for path, attribute, _ in registry
        if path.startswith(inside)
    ]
    own = [(cls, name) for cls, name in owners if ("Audio" in cls) == audio]
    return [f"{cls}.{name}" for cls, name in own]


# ------------------------------------------------------------------------------------------- face


def line(row: Row) -> str:
    results = "".join(f"{row.found.get(way, '-'):<{10}}" for way in WAYS)
    return f"{row.encoder.name:<48}{results}{'; '.join(row.patched)}"


def markdown(row: Row) -> str:
    results = " | ".join(row.found.get(way, "-") for way in WAYS)
    return f"| `{row.encoder.name}` | {', '.join(f'`{p}`' for p in row.patched)} | {results} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sweep.exporters", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="parts of names of models or modules")
    parser.add_argument("--markdown", action="store_true", help="print the table of the docs")
    parser.add_argument("--traceback", action="store_true", help="print each failure's traceback")
    parser.add_argument("--tests", type=Path, help="transformers' folder `tests`: its testers")
    parser.add_argument("--ways", nargs="+", default=testers.WAYS, choices=testers.WAYS)
    parser.add_argument("--first", action="store_true", help="one class of models of each tester")
    parser.add_argument("--limit", type=int, default=100, help="seconds that one export may take")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.tests is not None:
        return sweep_testers(options)
    load_transformers()
    rows: list[Row] = []
    for encoder in ENCODERS:
        names = f"{encoder.module} {encoder.name}".lower()
        if options.only and not any(text.lower() in names for text in options.only):
            continue
        rows.append(sweep(encoder, verbose=options.traceback))
        print(markdown(rows[-1]) if options.markdown else line(rows[-1]), flush=True)
        gc.collect()
    reasons = {(way, text) for row in rows for way, text in row.reasons.items()}
    for way, text in sorted(reasons):
        count = sum(row.reasons.get(way) == text for row in rows)
        print(f"{way}, {count} models: {text}")
    return 0 if all(row.ok for row in rows) else 1


def sweep_testers(options: argparse.Namespace) -> int:
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    import_torchvision()
    rows = []
    found = testers.find_rows(
        options.tests,
        options.only,
        options.ways,
        limit=options.limit,
        first=options.first,
        verbose=options.traceback,
    )
    for row in found:
        rows.append(row)
        print(testers.line(row, options.ways, options.markdown), flush=True)
        for way, text in row.reasons.items():
            print(f"    {way}: {text}", flush=True)
        gc.collect()
    for way in options.ways:
        counts = Counter(row.ours.get(way, "-") for row in rows)
        print(f"{way}: {', '.join(f'{n} {word}' for word, n in counts.most_common())}")
    return 0 if all(row.ok for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
