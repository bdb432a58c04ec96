"""Nodes of a `torch.fx.Graph`: written, copied, looked up, shared, and typed again."""
