"""Functions of Python's libraries that read plain values, in Python for what data decide."""
