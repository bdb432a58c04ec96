"""What an export loads, in a process of its own: its cost is the first thing that a user meets."""

from __future__ import annotations

import pytest

from tests.fresh import run_python

pytestmark = pytest.mark.core

_FIRST_EXPORT = """
import gc, sys
import torch

def collections():
    return gc.get_stats()[2]["collections"]

before, with_torch = collections(), {*sys.modules}
import lostwax
program = lostwax.export(torch.nn.Linear(4, 2), (torch.ones(3, 4),))
"""


def python(code: str) -> list[str]:
    return run_python(_FIRST_EXPORT + code).stdout.split()


def test_the_garbage_collector_does_not_walk_torch_meanwhile():
    """Once is as long as half of the import."""
    assert python("print(gc.isenabled(), collections() - before)") == ["True", "0"]
    assert python("program.run_decompositions(); print(collections() - before)") == ["0"]


def test_what_nobody_asked_for_is_not_loaded():
    """Rules of other operators; how programs are called, printed, checked, decomposed, changed,
    saved; dynamic shapes; errors about them; parts of others that are slow to load."""
    loaded = python("print(*[name for name in sys.modules if name not in with_torch])")
    assert "lostwax.ops.math.matmul" in loaded
    assert [name for name in loaded if name.startswith(UNASKED)] == []


UNASKED = (
    *("numpy.random", "fractions", "decimal", "html", "sympy"),
    *("lostwax.pt2.", "lostwax.interop", "lostwax.checking", "lostwax.passes", "lostwax.fake.prop"),
    *(f"lostwax.ir.{name}" for name in ("diff", "notebook", "text", "unflatten", "passes")),
    *(f"lostwax.ir.{name}" for name in ("decompose", "rules", "run.module", "run.calling")),
    *(f"lostwax.capture.{name}" for name in ("adaptive", "joint", "surroundings")),
    *(f"lostwax.capture.shapes.{name}" for name in ("dims", "spec", "symbols", "violations")),
    *(f"lostwax.sym.text.{name}" for name in ("parse", "srepr")),
    *(f"lostwax.ops.math.{name}" for name in ("fft", "linalg")),
    *(f"lostwax.ops.nn.{name}" for name in ("loss", "pool", "rnn")),
    *(f"lostwax.ops.tensors.{name}" for name in ("random", "sorting")),
    *("lostwax.ops.decompositions", "lostwax.fake.composite.spectral"),
)

MOST = 213
"""213 of the 646 files there are: what users put on tensors, ties of state, devices, identities,
caches of functions, iterators, shards and what functions reach outside of modules are asked of
every program."""


def test_a_small_export_loads_few_modules():
    own = "[m for name, m in sys.modules.items() if name.startswith('lostwax')]"
    (count,) = python(f"print(sum(hasattr(m, '__file__') for m in {own}))")
    assert int(count) <= MOST


def test_what_is_asked_for_is_loaded_then():
    code = """
program.module()(torch.ones(3, 4)); str(program); program.validate(); program.run_decompositions()
lostwax.export(torch.nn.ReLU(), (torch.ones(3),), dynamic_shapes=({0: lostwax.Dim("n")},))
print(*sys.modules)
"""
    wanted = {"ir.run.module", "ir.text", "ir.rules.verify", "ir.decompose.decompose"}
    wanted |= {"capture.shapes.spec", "ops.nn.activations"}
    assert {f"lostwax.{name}" for name in wanted} <= {*python(code)}


def test_handing_a_program_over_loads_nothing_that_reads_or_writes_files():
    code = """
from lostwax.interop import to_torch
before = collections()
to_torch(program)
print(collections() - before, *[name for name in sys.modules if name not in with_torch])
"""
    walked, *loaded = python(code)
    assert walked == "0"
    assert "torch._dynamo" in loaded  # what torch's own class needs
    assert [name for name in loaded if name.startswith(OF_FILES)] == []


OF_FILES = (
    *(f"lostwax.pt2.{name}" for name in ("container", "loading", "records", "saving")),
    *("lostwax.pt2.graph.decode", "lostwax.pt2.graph.encode", "lostwax.interop.reading"),
    *("lostwax.checkpoints", "lostwax.ir.decompose.decompose"),
)


def test_writing_onnx_loads_neither_torchs_exporter_nor_a_runtime():
    """onnx_ir itself loads sympy, onnx and protobuf."""
    pytest.importorskip("onnx_ir")
    code = """
import tempfile
before = collections()
lostwax.onnx.save(program, tempfile.mkdtemp() + "/x.onnx")
print(collections() - before, *[name for name in sys.modules if name not in with_torch])
"""
    walked, *loaded = python(code)
    assert walked == "0"
    assert "onnx_ir" in loaded
    assert [name for name in loaded if name.startswith(NOT_FOR_ONNX)] == []


NOT_FOR_ONNX = (
    *("torch.onnx", "torch._dynamo", "torch.fx.experimental.symbolic_shapes", "torch.distributed."),
    *("onnxscript", "onnxruntime", "lostwax.pt2.", "lostwax.interop", "lostwax.llm"),
)
