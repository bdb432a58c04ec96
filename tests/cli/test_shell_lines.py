"""The shell lines of the documentation run, in the order in which they stand."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ["README.md", "docs/command-line.md"]
SMALL = {"timm:resnet50": "timm:test_resnet", "transformers:bert": "transformers:bert?tiny"}
"""Models that stand for those of the pages: there, they are ones that readers know."""


QUICKLY = {"check": ["--draws", "1"], "bench": ["--repeat", "2"]}


def list_lines(text: str) -> list[str]:
    """The commands of a page: lines that begin with `lostwax`, indented or after a `$`."""
    return re.findall(r"^(?:    |\$ )(lostwax .*)$", text, re.M)


def test_lines_are_found():
    assert list_lines("lostwax a\n    lostwax b  # c\n```\n$ lostwax d\n```\n") == [
        *("lostwax b  # c", "lostwax d")
    ]


@pytest.mark.skipif(find_spec("timm") is None, reason="needs timm")
@pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
@pytest.mark.parametrize("page", PAGES)
def test_lines_run_in_their_order(lostwax, folder, page):
    lines = list_lines((ROOT / page).read_text())
    assert lines
    for line in lines:
        for known, small in SMALL.items():
            line = line.replace(known, small)
        if line.startswith("lostwax run") and ".pte" in line:
            pytest.importorskip("executorch")
        if ".onnx" in line:
            pytest.importorskip("onnx_ir")
            pytest.importorskip("onnxruntime")
        words = shlex.split(line, comments=True)[1:]
        ran = lostwax(*words, *QUICKLY.get(words[0], ()))
        assert ran.code in (0, 4) if " diff " in line else ran.code == 0, f"{line}\n{ran.err}"
