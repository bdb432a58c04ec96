"""Names of lostwax, as torch.export.graph_signature has them, for type checkers alone: what runs is
`lostwax.namespaces`."""

from lostwax import ArgumentSpec as ArgumentSpec
from lostwax import ConstantArgument as ConstantArgument
from lostwax import CustomObjArgument as CustomObjArgument
from lostwax import ExportBackwardSignature as ExportBackwardSignature
from lostwax import ExportGraphSignature as ExportGraphSignature
from lostwax import InputKind as InputKind
from lostwax import InputSpec as InputSpec
from lostwax import OutputKind as OutputKind
from lostwax import OutputSpec as OutputSpec
from lostwax import SymBoolArgument as SymBoolArgument
from lostwax import SymFloatArgument as SymFloatArgument
from lostwax import SymIntArgument as SymIntArgument
from lostwax import TensorArgument as TensorArgument
from lostwax import TokenArgument as TokenArgument
