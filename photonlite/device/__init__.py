"""Where work runs: streams, events and host memory that a device can reach, on CUDA or on the CPU."""
