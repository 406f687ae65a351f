"""Scenes on which the checkpoint is judged; shares only the sprites with the training generator."""
