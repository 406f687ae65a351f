"""Compiles grammars in worker processes."""
