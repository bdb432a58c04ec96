"""`.pte` files, which the ExecuTorch runtime runs: written, read as listings, and run."""

from lostwax.pte.file.bundle import read_bundle
from lostwax.pte.file.record import read_record
from lostwax.pte.file.text import dump
from lostwax.pte.file.weights import load_weights
from lostwax.pte.runtime import load_runtime, run

__all__ = ["dump", "load_runtime", "load_weights", "read_bundle", "read_record", "run"]
