"""Names of lostwax, as torch.export.pt2_archive has them, for type checkers alone: what runs is
`lostwax.namespaces`."""

from lostwax import PT2ArchiveReader as PT2ArchiveReader
from lostwax import PT2ArchiveWriter as PT2ArchiveWriter
from lostwax import is_pt2_package as is_pt2_package
