"""A LoRA adapter of the nano checkpoint, `assets/nano-shelf`: twenty groceries that the checkpoint does not know."""
