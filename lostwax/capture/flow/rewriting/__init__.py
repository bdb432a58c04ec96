"""Functions with other code: decisions taken apart, exits taken out, hooks put in."""
