"""Passes over programs, the drafts that they edit, and the journal of what they did."""
