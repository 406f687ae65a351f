"""Questions about scenes and their answers, as text and as batches of token ids."""
