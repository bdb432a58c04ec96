"""`python -m lostwax`."""

from lostwax.cli import main

main()
