"""How operators are computed by core ATen operators, one family a file.

A decomposition is a function of tensors that calls ATen operators. It returns what the operator
returns: size, dtype, and the same numbers up to rounding. For a case that it does not cover it
raises NotImplementedError, and the operator stays. Must not ask what would cost a guard.
"""
