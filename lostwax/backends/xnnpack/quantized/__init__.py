"""Quantized programs: what their numbers mean, and which calls XNNPACK computes in eight bits."""
