"""The `lostwax` command. What a command does is imported when it is called: `lostwax --help` and
`lostwax explain` load no torch."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point. A terminal has its first line before anything large is imported."""
    from lostwax.cli.progress import show_first

    show_first(sys.argv[1:])
    from lostwax.cli.app import app

    app(prog_name="lostwax")
