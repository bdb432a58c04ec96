"""Models by name: built, given weights and example inputs."""
