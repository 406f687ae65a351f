"""Benchmarks, training and evaluation code: lives in the repository, is not part of the wheel."""
