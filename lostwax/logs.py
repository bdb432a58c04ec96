"""What lostwax tells of its decisions while it works: `LOSTWAX_LOGS=dynamic python train.py`.

Topics are loggers of the standard library (`lostwax.dynamic`), so a program may also switch them on
itself. Layer 0: imports nothing of lostwax but `cache`.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys

from lostwax.cache import list_caches

TOPICS = ("caches", "dynamic")
_WANTED = os.environ.get("LOSTWAX_LOGS", "").replace(",", " ").split()
for _unknown in sorted(set(_WANTED) - set(TOPICS)):
    sys.stderr.write(f"LOSTWAX_LOGS: no topic {_unknown!r}; topics are {', '.join(TOPICS)}\n")


def _topic(name: str) -> logging.Logger:
    logger = logging.getLogger(f"lostwax.{name}")
    if name in _WANTED:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"lostwax {name}: %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return logger


def describe_caches() -> str:
    """A table of all caches of the process: how much is in each, and how much may be, how often
    something was found in it (a dash where nobody counts), and how often not."""
    rows = [("cache", "size", "bound", "hits", "misses")]
    for name, size, bound, hits, misses in list_caches():
        found = "-" if hits is None else f"{hits:,}"
        rows.append((name, f"{size:,}", f"{bound:,}", found, f"{misses:,}"))
    name_width, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    return "\n".join(
        " ".join([f"{name:{name_width}}", *map(str.rjust, numbers, widths)])
        for name, *numbers in rows
    )


dynamic = _topic("dynamic")
"""Symbols, guards, and captures: which sizes vary, and why."""
caches = _topic("caches")
"""Each cache that was full and is emptied, and all of them when the process ends."""
if "caches" in _WANTED:
    atexit.register(lambda: caches.info("at the end\n%s", describe_caches()))
