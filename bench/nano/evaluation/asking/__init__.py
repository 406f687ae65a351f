"""Questions about held-out scenes and how their answers are read."""
