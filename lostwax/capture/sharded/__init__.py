"""DTensors: what a capture does with shards, and with how they were cut."""
