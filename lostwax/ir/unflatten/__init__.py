"""The modules of a program back: its flat graph cut into one body a module."""
