"""How operators are computed by core ATen operators, one family a file.

A decomposition is a function of tensors that calls ATen operators. It returns what the operator
returns: size, dtype, and the same numbers up to rounding. For a case that it does not cover it
raises NotImplementedError, and the operator stays. Must not ask what would cost a guard.
"""

from lostwax.ops.decompositions import attention as attention
from lostwax.ops.decompositions import factory as factory
from lostwax.ops.decompositions import indexing as indexing
from lostwax.ops.decompositions import matmul as matmul
from lostwax.ops.decompositions import norm as norm
from lostwax.ops.decompositions import pointwise as pointwise
from lostwax.ops.decompositions import reduce as reduce
from lostwax.ops.decompositions import resample as resample
from lostwax.ops.decompositions import views as views
