"""Running prompts: in padded batches anywhere, packed on one axis where a model has a decoder for that."""
