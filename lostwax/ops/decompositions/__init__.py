"""How operators are computed by others, one family a file: what leads to core ATen.

A decomposition is a function of tensors that calls ATen operators. It gives what the operator
gives: size, dtype, and the same numbers as far as rounding allows.
"""

from lostwax.ops.decompositions import views

assert views
