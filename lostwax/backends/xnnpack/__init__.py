"""XNNPACK: fast kernels for processors, which the ExecuTorch runtime has as a backend."""
