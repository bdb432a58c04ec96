"""What the user's Python can reach, and what it has changed there."""
