"""What the module holds: fakes stand in for it while it is captured, then it is put back."""
