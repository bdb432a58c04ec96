"""Passes over programs, what they are given, and what is noted of them."""
