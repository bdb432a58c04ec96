"""How operators are computed by others, one family a file: what leads to core ATen.

A decomposition is a function of tensors that calls ATen operators. It gives what the operator
gives: size, dtype, and the same numbers as far as rounding allows. It may ask a size no question
that costs a guard; a case it does not cover raises NotImplementedError, and the operator stays.
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
