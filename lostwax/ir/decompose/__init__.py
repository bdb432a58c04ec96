"""Operators taken apart into others, down to core ATen."""
