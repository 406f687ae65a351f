"""Judges a checkpoint on held-out scenes: `python -m bench.nano.evaluation`."""
