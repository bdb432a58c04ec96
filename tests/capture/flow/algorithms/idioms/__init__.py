"""The turns of phrase of those who write models: algorithms by how they are written."""
