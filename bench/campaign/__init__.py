"""The campaign: what happens to a server that is abused for hours, counted over many runs. See `__main__`."""
