"""What lostwax tells of its decisions while it works: `LOSTWAX_LOGS=dynamic python train.py`.

Topics are loggers of the standard library (`lostwax.dynamic`), so a program may also switch them on
itself. Layer 0: imports nothing of the house.
"""

from __future__ import annotations

import logging
import os
import sys

TOPICS = ("dynamic",)


def _topic(name: str) -> logging.Logger:
    logger = logging.getLogger(f"lostwax.{name}")
    wanted = os.environ.get("LOSTWAX_LOGS", "").replace(",", " ").split()
    for unknown in set(wanted) - set(TOPICS):
        sys.stderr.write(f"LOSTWAX_LOGS: no topic {unknown!r}; topics are {', '.join(TOPICS)}\n")
    if name in wanted:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"lostwax {name}: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return logger


dynamic = _topic("dynamic")
"""Symbols, guards, and captures: which sizes vary, and why."""
