"""Dicts and sets of which data decide what is in them."""
