"""Caches of transformers as arguments: what the errors say to register, applied, in the process
that exports and in a fresh one that loads."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fresh import run_python

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")

MODELS = """
import sys
import torch
from sweep.libraries import _load
_load("transformers")
from transformers import (
    DynamicCache, EncoderDecoderCache, LlamaConfig, LlamaForCausalLM, StaticCache
)

torch.manual_seed(0)
config = LlamaConfig(
    hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=1, vocab_size=50,
)
model = LlamaForCausalLM(config).eval().requires_grad_(False)
ids = torch.arange(8).reshape(2, 4)


def dynamic():
    cache = DynamicCache(config=config)
    model(ids, past_key_values=cache)
    return cache


def static():
    cache = StaticCache(config, max_cache_len=16)
    cache.early_initialization(2, 1, 8, torch.float32, "cpu")
    return cache


def pair():
    return EncoderDecoderCache(dynamic(), dynamic())


class Logits(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, ids, cache):
        cache = getattr(cache, "self_attention_cache", cache)
        return self.model(ids, past_key_values=cache).logits
"""

EXPORTS = """
import lostwax
from lostwax.errors import InputTypeError

for make in (pair, static, dynamic):
    cache = make()
    for expected in ("EncoderDecoderCache", "DynamicCache") if make is pair else ("StaticCache",):
        try:
            lostwax.export(Logits(), (ids, cache))
        except InputTypeError as error:
            assert f"is of type transformers.cache_utils.{expected}, which" in str(error)
            exec(str(error).partition("fix: ")[2])
    program = lostwax.export(Logits(), (ids, cache))
    torch.testing.assert_close(program.module()(ids, make()), Logits()(ids, make()))
    lostwax.save(program, f"{sys.argv[1]}/{make.__name__}.pt2")
"""

LOADS = """
import re
import lostwax
from lostwax.errors import LoadError

for make in (pair, static, dynamic):
    file = f"{sys.argv[1]}/{make.__name__}.pt2"
    for expected in {pair: ("Dynamic", "EncoderDecoder"), static: ("Static",), dynamic: ()}[make]:
        try:
            lostwax.load(file)
        except LoadError as error:
            assert f"{expected}Cache' is not registered in this process" in str(error)
            exec(re.search("as when the program was saved, (.*), then load again", str(error))[1])
    run = lostwax.load(file).module()
    torch.testing.assert_close(run(ids, make()), Logits()(ids, make()))
"""

LENGTHS = """
import lostwax
from lostwax.errors import ConstraintViolationError

sizes = {"ids": {0: lostwax.Dim("batch", min=2), 1: lostwax.Dim("seq")}}


class Plain(Logits):
    def forward(self, ids):
        return self.model(ids, use_cache=False).logits


try:
    lostwax.export(Plain(), (ids,), dynamic_shapes=sizes)
except ConstraintViolationError as error:
    first, *rest = str(error).splitlines()
    assert any("q_length" in line for line in rest), error
    what, _, code = first.partition("; declare ")
    assert (what, code) == (
        "[LW0201] a declared dimension cannot vary as declared", 'seq = Dim("seq", min=2)'
    )
    exec(code, {"Dim": lostwax.Dim}, names := {})
sizes["ids"][1] = names["seq"]
run = lostwax.export(Plain(), (ids,), dynamic_shapes=sizes).module()
torch.testing.assert_close(run(ids[:, :2]), Plain()(ids[:, :2]))
"""


def run(code: str, folder: Path) -> None:
    given = f"import sys; sys.argv.append({str(folder)!r})\n"
    run_python(given + MODELS + code, ignore_warnings=True)


def test_caches_are_registered_as_the_errors_say(tmp_path):
    run(EXPORTS + LENGTHS, tmp_path)
    run(LOADS, tmp_path)
