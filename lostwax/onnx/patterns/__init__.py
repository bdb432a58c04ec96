"""What is written in fewer nodes than a program has; `load` fills the table. Must not know torch's
operators.
"""

from importlib import import_module


def load() -> None:
    """Fill the table."""
    for name in ("fusions", "few_bits"):
        import_module(f"{__name__}.{name}")
