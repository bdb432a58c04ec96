"""`.pte` files, which the ExecuTorch runtime runs: written, read as listings, and run."""

from lostwax.pte.runtime import load_runtime, run
from lostwax.pte.text import dump

__all__ = ["dump", "load_runtime", "run"]
