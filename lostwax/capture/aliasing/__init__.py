"""Views and writes of the user's program: which tensors share memory, which layouts matter."""
