"""Composite operators, taken apart before C++ would do it."""
