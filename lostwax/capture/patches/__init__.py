"""Everything that a capture changes in torch and in Python while it runs, in one place.

`table.py` lists it. Must not hold anything that changes torch for good.
"""
