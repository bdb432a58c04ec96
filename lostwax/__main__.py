"""`python -m lostwax`."""

from lostwax.cli.app import main

main()
