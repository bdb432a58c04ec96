"""A Python module whose attributes functions set."""

flag = 0
seen: list[int] = []
