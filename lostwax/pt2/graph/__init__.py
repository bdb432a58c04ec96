"""The JSON object of a program: graph, signature, structures, symbolic numbers."""
