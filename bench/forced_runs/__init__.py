"""What appending tokens at once that must follow gains: see `__main__`."""
