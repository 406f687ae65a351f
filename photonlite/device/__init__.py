"""Where work runs: streams, events and host memory that a device can reach, on CUDA, on the CPU, or simulated."""
