"""Capture: a module's Python is run once on fakes, and what it computes becomes a program."""

from lostwax.capture.export import export

__all__ = ["export"]
