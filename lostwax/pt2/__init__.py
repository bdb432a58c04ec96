"""`.pt2`, the archive in which PyTorch keeps exported programs: written and read, both ways."""

from lostwax.pt2.loading import load
from lostwax.pt2.records import PT2ArchiveReader, PT2ArchiveWriter, is_pt2_package
from lostwax.pt2.saving import save

__all__ = ["PT2ArchiveReader", "PT2ArchiveWriter", "is_pt2_package", "load", "save"]
