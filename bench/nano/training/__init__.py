"""Training of the checkpoint and what comes before and after it."""
