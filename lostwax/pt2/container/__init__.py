"""The zip file: its records, raw weights, example inputs."""
