"""The nano checkpoint: its objects, words, tokenizer, scenes, training and evaluation."""
