"""Language models in ExecuTorch's own runner: the cases of `tests/llm/families.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.interop.generation import find_version
from tests.llm.families import BEGIN, CONTEXT, COUNTS, END, FAMILIES, QUANTIZED, SMALL, WORDS
from tests.whole import WHOLE

pytestmark = pytest.mark.skipif(
    find_version() < (5, 23), reason="transformers 5.23 is the first with these interfaces"
)
ROOT = Path(__file__).parents[2]
CASES = [*FAMILIES, *(QUANTIZED if WHOLE else ()), "Llama, portable", "Mamba 2, portable", *SMALL]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.llm.families"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(done.stdout.splitlines()[-1])
    if "missing" in results:
        pytest.skip(f"ExecuTorch's runner does not load: {results['missing']}")
    return results  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", CASES)
def test_the_runner_says_what_eager_says(found: dict[str, Any], case: str) -> None:
    result = found[case]
    assert "error" not in result, result["error"]
    for size, count in COUNTS.items():
        first, second, wanted = result[f"prompt of {size}"]
        assert first == wanted
        assert second == wanted
        assert len(wanted) == count or wanted[-1] in (END, END - 2)
    assert result["different"] > 10, "tokens that repeat themselves would show nothing"


def test_what_the_runner_reads(found: dict[str, Any]) -> None:
    assert found["Llama"]["metadata"] == {
        "enable_dynamic_shape": True,
        "get_bos_id": BEGIN,
        "get_eos_ids": [END, END - 2],
        "get_max_context_len": CONTEXT,
        "get_max_seq_len": 16,
        "get_vocab_size": WORDS,
        "use_kv_cache": True,
        "use_sdpa_with_kv_cache": False,
    }
    cache = 2 * 2 * CONTEXT * 16 * 4  # layers, keys and values, tokens, two heads of eight, bytes
    assert f"{cache:,} of them cache" in found["Llama"]["report"]


def test_a_context_that_is_full(found: dict[str, Any]) -> None:
    said = found["brim"]
    tokens, full = said["more"]
    assert len(full) == 7
    assert tokens == full[: len(tokens)]
    assert len(tokens) == 7 or tokens[-1] in (END, END - 2)
    assert said["runner"] == "Generation failed"
    assert "a prompt of 17 tokens and 8 new ones are more than the file keeps, 24" in said["ours"]
    assert "at least one token" in said["empty"]
    assert said["check"] == [True, {"1": 23, "2": 22, "17": 7}]
    assert said["other"].startswith("token ")


def test_weights_of_fewer_bits_are_fewer_bytes(found: dict[str, Any]) -> None:
    """Floats take 32 bits; these have scales beside them, and some things are no weights."""
    for case, most in {"8da4w, 8 bits, custom": 0.3, "8w, 4 bits": 0.33}.items():
        size, floats = found[case]["bytes"]
        assert size < most * floats + 40_000, case


def test_kernels_beside_those_of_every_runtime(found: dict[str, Any]) -> None:
    attention = ["llama::custom_sdpa.out", "llama::update_cache.out"]
    assert found["Llama"]["kernels"] == []
    assert found["custom"]["kernels"] == attention
    assert found["custom, but for caps"]["kernels"] == []
    assert found["custom"]["metadata"]["use_sdpa_with_kv_cache"] is True
    kernels = found["8da4w, 8 bits, custom"]["kernels"]
    assert kernels == [*attention, *(f"quantized_decomposed::embedding_{n}.out" for n in BITS)]


BITS = ("2bit", "4bit", "byte")
