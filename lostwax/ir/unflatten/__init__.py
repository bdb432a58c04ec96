"""Unflattening: a program's flat graph, cut into one body for each module of the original."""
