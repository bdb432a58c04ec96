"""What is behind `torch.SymInt`, `SymFloat` and `SymBool` while sizes are symbolic."""
