"""What is read of the user's Python without running it: functions, names, containers, iterators."""
