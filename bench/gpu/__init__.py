"""What the benchmarks of speed share: the machine, its ceilings, models of random weights, samples and tables."""
