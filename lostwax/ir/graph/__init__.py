"""Work on a `torch.fx.Graph`: write, copy, look up, merge and retype its nodes."""
