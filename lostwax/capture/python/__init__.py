"""Reads the user's Python without running it: functions, names, containers, iterators."""
