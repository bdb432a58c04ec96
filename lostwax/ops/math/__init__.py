"""Operators that compute: pointwise, reductions, products, linear algebra, Fourier transforms."""
