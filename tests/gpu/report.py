"""The cases on a GPU, with figures: `python -m tests.gpu.report [--json FILE] [pattern ...]`."""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
import warnings
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import torch

from tests.gpu.cases import cases


def main(argv: list[str]) -> int:
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("patterns", nargs="*", help="names of cases, * allowed")
    p.add_argument("--json", type=Path, help="write the figures to this file")
    a = p.parse_args(argv)
    warnings.simplefilter("ignore")
    began = time.perf_counter()
    wrong: dict[str, str] = {}
    figures: dict[str, float] = {}
    for name, case in cases().items():
        if a.patterns and not any(fnmatch(name, f"*{pattern}*") for pattern in a.patterns):
            continue
        try:
            figures[name] = case()
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {str(error)[:600]} {_where(error)}"
            print(f"FAILED {name}\n    {wrong[name]}", flush=True)
    summary: dict[str, Any] = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "agree": len(figures),
        "of": len(figures) + len(wrong),
        "seconds": round(time.perf_counter() - began),
    }
    print(json.dumps(summary))
    if a.json:
        a.json.write_text(json.dumps({**summary, "wrong": wrong, "worst": figures}, indent=1))
    return 1 if wrong else 0


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    return " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(frames))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
