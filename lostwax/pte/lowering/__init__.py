"""From Edge programs to listings of kernel calls."""
