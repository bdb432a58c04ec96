"""Names of lostwax, as torch.export.unflatten has them, for type checkers alone: what runs is
`lostwax.namespaces`."""

from lostwax import FlatArgsAdapter as FlatArgsAdapter
from lostwax import InterpreterModule as InterpreterModule
from lostwax import InterpreterModuleDispatcher as InterpreterModuleDispatcher
from lostwax import UnflattenedModule as UnflattenedModule
from lostwax import unflatten as unflatten
