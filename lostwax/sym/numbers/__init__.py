"""Numbers that programs compute from sizes: integer functions, floats, conditions on floats."""
