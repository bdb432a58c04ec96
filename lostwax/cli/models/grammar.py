"""How `--dynamic` is written. Must not import torch."""

from __future__ import annotations

import re

DYNAMIC = re.compile(
    r"(?:(?:(?P<input>[A-Za-z_]\w*)\.)?(?P<axis>-?\d+)=)?"
    r"(?:(?P<scale>[1-9]\d*)\*)?(?P<name>[A-Za-z_]\w*)(?P<offset>[+-]\d+)?"
    r"(?::(?P<min>\d*)\.\.(?P<max>\d*))?"
)
"""`batch`, `1=length`, `tokens.1=length:1..512`, `0=2*half`."""
