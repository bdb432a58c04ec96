"""Names of lostwax, as torch.export.dynamic_shapes has them, for type checkers alone: what runs is
`lostwax.namespaces`."""

from lostwax import AdditionalInputs as AdditionalInputs
from lostwax import Constraint as Constraint
from lostwax import Dim as Dim
from lostwax import ShapesCollection as ShapesCollection
from lostwax import dims as dims
from lostwax import dump_dynamic_shapes as dump_dynamic_shapes
from lostwax import load_dynamic_shapes as load_dynamic_shapes
from lostwax import (
    refine_dynamic_shapes_from_suggested_fixes as refine_dynamic_shapes_from_suggested_fixes,
)
