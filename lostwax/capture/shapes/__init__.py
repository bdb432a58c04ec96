"""From `dynamic_shapes`, as users write it, to symbols; and the errors when these do not hold."""
