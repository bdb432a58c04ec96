"""How much memory it takes to have large decoders without their data, each in a process of its own.

    python -m bench.memory [fake] [export] [--json]

    fake    a decoder of 70 billion parameters is built and run under our FakeTensorMode
    export  a decoder of 7 billion parameters, built on `meta`, is exported

The figure is the highest resident memory of the process, less what it held when everything was
imported and nothing built; before an export also less the module on `meta`, which is the user's.
Exits with 1 when a bar is missed. Linux only (/proc).
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


# `getrusage` would not do: its peak counts the parent's memory.


def fake() -> dict[str, Any]:
    """Runs in the child."""
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
        "run_s": round(time.perf_counter() - built, 3),
        "growth_mb": round(resident("VmHWM") - before, 1),
    }


def export() -> dict[str, Any]:
    """Runs in the child. The peak of building the module is below that of the export, or it counts:
    VmHWM cannot be reset by a process without rights."""
    import torch

    from examples.models.llama import LLAMA_7B, Llama
    from lostwax.capture import export

    start = time.perf_counter()
    with torch.device("meta"):
        model = Llama(LLAMA_7B).eval()
        tokens = torch.zeros(1, 2048, dtype=torch.long)
    built = time.perf_counter()
    before = resident("VmRSS")
    program = export(model, (tokens,))
    output = next(iter(reversed(program.graph.nodes))).meta["val"][0]
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "output": list(output.shape),
        "build_s": round(built - start, 3),
        "run_s": round(time.perf_counter() - built, 3),
        "growth_mb": round(resident("VmHWM") - before, 1),
    }


WORK = {"fake": fake, "export": export}


def in_a_process(name: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.memory", "--child", name]
    run = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(run.stdout)  # type: ignore[no-any-return]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("work", nargs="*", choices=[*WORK, []], help="default: all")
    parser.add_argument("--json", action="store_true", help="print JSON instead of sentences")
    parser.add_argument("--child", choices=list(WORK), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(WORK[options.child]()))
        return 0
    found = {name: in_a_process(name) for name in options.work or WORK}
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for name, figures in found.items():
            print(
                f"{name}: a decoder of {figures['parameters'] / 1e9:.1f} billion parameters: built "
                f"in {figures['build_s']:.2f} s, {name} in {figures['run_s']:.2f} s, output "
                f"{figures['output']}; memory grew by {figures['growth_mb']:.0f} MB "
                f"(bar: {BAR_MB} MB)"
            )
    return 0 if all(figures["growth_mb"] < BAR_MB for figures in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
