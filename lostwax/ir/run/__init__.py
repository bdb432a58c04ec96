"""A program as a module: how it is called, what it checks, how it writes state back."""
