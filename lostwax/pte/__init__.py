"""`.pte` files, which the ExecuTorch runtime runs: written, read as listings, and run."""
