"""Names of lostwax, as torch.export.decomp_utils has them, for type checkers alone: what runs is
`lostwax.namespaces`."""

from lostwax import CustomDecompTable as CustomDecompTable
