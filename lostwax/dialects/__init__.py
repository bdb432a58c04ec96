"""Dialects: programs over narrower sets of operators, on the way from ATen to an executable."""
