"""The PaliGemma family: PaliGemma 2, whose text decoder is Gemma 2."""
