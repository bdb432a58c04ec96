"""`python -m lostwax_run`: the command `lostwax-run`."""

import sys

from lostwax_run.cli import main

if __name__ == "__main__":
    sys.exit(main())
