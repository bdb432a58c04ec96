"""All reading and writing of bytecode, for Python 3.11 to 3.13. Nobody else names an instruction's
number, or its bytes. Layer 0: imports nothing of the house but `cache`."""
