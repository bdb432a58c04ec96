"""Views and writes of the user's program: who shares memory with whom, and on which layouts."""
