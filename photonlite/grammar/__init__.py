"""Grammars: what may stand at the next position of an answer."""
