"""What a KV cache in FP8 costs in accuracy: answers, rounding layer by layer, and logits."""
