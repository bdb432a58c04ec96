"""`.pt2`, the archive in which PyTorch keeps exported programs: written and read, both ways."""
