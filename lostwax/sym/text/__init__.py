"""Expressions as text: readable, and as sympy's srepr; written and read."""
