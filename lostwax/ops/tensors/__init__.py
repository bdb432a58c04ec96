"""Operators that make, view, rearrange and index tensors."""
