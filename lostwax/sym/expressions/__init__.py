"""Expressions: polynomials over atoms, conditions on them, and the algebra that makes each once."""
