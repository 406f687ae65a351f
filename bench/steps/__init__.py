"""Decode steps by themselves, without an engine around them; see `__main__`."""
