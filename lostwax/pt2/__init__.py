"""`.pt2`, the archive in which PyTorch keeps exported programs: written and read, both ways."""

from lostwax.pt2.loading import load
from lostwax.pt2.saving import save

__all__ = ["load", "save"]
