"""CUDA graphs of decode steps, prompts and the image encoder."""
