"""Kernels: one function for each operation, in Triton where there is a GPU; PyTorch references in `reference`."""
