"""The file itself: its tables, how they are written and read, and as a listing for people."""
