"""Models: networks, their checkpoints, and what a runner needs of them."""
