"""How much memory a decoder of 70 billion parameters takes as fakes: built and run in a process of
its own under our FakeTensorMode.

    python -m bench.memory [--json]

The figure is the highest resident memory of that process, less what it held when everything was
imported and nothing built. Exits with 1 when the bar is missed. Linux only (/proc).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

BAR_MB = 300


def resident(field: str) -> float:
    """VmRSS (now) or VmHWM (highest so far) of this process, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/self/status has no {field}")


def build_and_run() -> dict[str, Any]:
    """Runs in the child. `getrusage` would not do: its peak counts the parent's memory."""
    import torch

    from examples.models.llama import LLAMA_70B, Llama
    from lostwax.fake import FakeTensorMode

    before = resident("VmRSS")
    start = time.perf_counter()
    with FakeTensorMode(), torch.no_grad():
        model = Llama(LLAMA_70B)
        built = time.perf_counter()
        logits = model(torch.randint(0, LLAMA_70B.vocabulary, (8, 2048)))
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "output": list(logits.shape),
        "build_s": round(built - start, 3),
        "forward_s": round(time.perf_counter() - built, 3),
        "growth_mb": round(resident("VmHWM") - before, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a sentence")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(build_and_run()))
        return 0
    command = [sys.executable, "-m", "bench.memory", "--child"]
    found = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        print(
            f"a decoder of {found['parameters'] / 1e9:.1f} billion parameters: built in "
            f"{found['build_s']:.2f} s, forward {found['forward_s']:.2f} s, output "
            f"{found['output']}; memory grew by {found['growth_mb']:.0f} MB (bar: {BAR_MB} MB)"
        )
    return 0 if found["growth_mb"] < BAR_MB else 1


if __name__ == "__main__":
    sys.exit(main())
