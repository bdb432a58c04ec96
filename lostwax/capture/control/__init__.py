"""Operators that take functions (`torch.cond`, `while_loop`, `map`, `scan`) as steps of a program:
each function is recorded into a graph of its own."""
