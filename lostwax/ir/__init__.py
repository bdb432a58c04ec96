"""The program: its graph, its signature, how it is called, checked, printed and run."""
