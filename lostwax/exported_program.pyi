"""Names of lostwax, as torch.export.exported_program has them, for type checkers alone: what runs
is `lostwax.namespaces`."""

from lostwax import ExportedProgram as ExportedProgram
from lostwax import ModuleCallEntry as ModuleCallEntry
from lostwax import ModuleCallSignature as ModuleCallSignature
from lostwax import default_decompositions as default_decompositions
