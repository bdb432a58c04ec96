"""lostwax as a backend of `transformers.exporters`: the cases of `tests/interop/generation.py`, and
the sweep over transformers' testers, each in a process of its own."""

from __future__ import annotations

import json

import pytest

from tests.fresh import run_module, run_python
from tests.interop.generation import CASES, find_version

needs_backends = pytest.mark.skipif(
    find_version() < (5, 23), reason="transformers 5.23 is the first that takes backends"
)


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    done = run_module("tests.interop.generation")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@needs_backends
@pytest.mark.parametrize("name", CASES)
def test_case(found, name):
    assert found[name] == "ok", found[name]


@pytest.mark.skipif(find_version() >= (5, 23), reason="needs a transformers that is older, or none")
def test_an_older_transformers_is_refused():
    done = run_python(
        "from sweep.libraries import import_torchvision; from importlib.util import find_spec\n"
        "find_spec('torchvision') and import_torchvision()\n"
        "import lostwax.interop.transformers",
        check=False,
    )
    assert "[LW0702] transformers cannot take lostwax as a backend: " in done.stderr
    assert "instead: pip install 'transformers>=5.23'" in done.stderr


def test_nothing_is_imported_before():
    run_python(
        "import sys, lostwax, lostwax.interop; lostwax.interop.to_torch\n"
        "assert 'transformers' not in sys.modules and 'executorch' not in sys.modules"
    )


# --------------------------------------------------------------------------------- sweep of testers

TESTER = """
import random
import unittest

from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers.cache_utils import NotThere  # of another version
import not_installed
import torch

from tests.exporters.test_export import Mixin

SIZES = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
             vocab_size=100)


class Refused(LlamaModel):
    def forward(self, input_ids, **kwargs):
        found = super().forward(input_ids, **kwargs)
        return found.last_hidden_state * float(input_ids.numpy().sum())


class Wrong(LlamaModel):
    def forward(self, input_ids, **kwargs):
        return super().forward(input_ids, **kwargs).last_hidden_state * random.random()


class LlamaModelTest(Mixin, unittest.TestCase):
    def setUp(self):
        self.all_model_classes = [LlamaForCausalLM, Refused, Wrong]
        self.all_generative_model_classes = [LlamaForCausalLM]

    def make(self, model_class):
        torch.manual_seed(0)
        return model_class(LlamaConfig(**SIZES)).eval(), {"input_ids": torch.randint(0, 9, (2, 4))}

    def _prepare_export_model_and_inputs(self, model_class, device):
        return {"model": self.make(model_class)}

    def _prepare_export_generate_model_and_inputs(self, model_class, device, multi_token_decode):
        from transformers.exporters.utils import decompose_for_generation
        return decompose_for_generation(*self.make(model_class),
                                        multi_token_decode=multi_token_decode)
"""
MIXIN = """
class Mixin:
    def _skip_if_not_exportable(self): ...

    def _should_skip(self, model_class, dynamic, backend):
        return dynamic and backend == "onnx"
"""


def test_the_folder_must_be_theirs(tmp_path):
    done = run_module("sweep.exporters", "--tests", str(tmp_path))
    assert done.returncode == 1
    assert "has no exporters/test_export.py: --tests takes the folder `tests`" in done.stderr


@needs_backends
def test_sweep_of_testers(tmp_path):
    folder = tmp_path / "tests"
    files = {"exporters/test_export.py": MIXIN, "models/llama/test_modeling_llama.py": TESTER}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(text)
    done = run_module("sweep.exporters", "--tests", str(folder), "--ways", "dynamic", "generate")
    rows = [line for line in done.stdout.splitlines() if line.startswith("llama ")]
    theirs = "values                  names, dynamic skipped  count"
    assert [" ".join(row.split()) for row in rows] == [
        " ".join(f"llama {name} {theirs} {ours}".split())
        for name, ours in (
            ("LlamaForCausalLM", "ok, batch ok"),
            ("Refused", "refused -"),
            ("Wrong", "wrong -"),
        )
    ], done.stdout + done.stderr
    assert done.returncode == 1  # for the one that is wrong
