"""Kernels: one function for each operation, its plain PyTorch truth in `reference.py`, Triton where there is a GPU."""
