"""Every kernel in PyTorch operations: what it is compared with, and what runs where there is no GPU. Any float type."""
