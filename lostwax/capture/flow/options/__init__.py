"""Variables that data make one thing or another."""
