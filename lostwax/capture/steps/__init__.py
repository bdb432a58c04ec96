"""The log of a capture: steps, where each comes from, and the graph that is made of them."""
