"""Control flow of Python that depends on data: `if`, `while`, `for`, `break`, early returns."""
