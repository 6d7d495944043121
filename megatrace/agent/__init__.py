"""Inside the traced process: rings, their registration with CUDA, host spans, NVTX."""
