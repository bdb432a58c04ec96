"""`export(strict=True)`: what the module's Python does beside its tensors is refused."""
