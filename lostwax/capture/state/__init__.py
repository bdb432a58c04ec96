"""What the module holds: fakes replace its tensors during a capture; then all is put back."""
