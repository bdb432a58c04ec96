"""Benchmarks: ours beside torch's, in one process: `python -m bench.fake`."""
