"""`make fuzz`: random programs of the kind that users write, through every way, against eager."""
