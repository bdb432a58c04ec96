"""Expressions in canonical form, and the rules that keep them so."""
