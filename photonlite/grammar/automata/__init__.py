"""Automata over bytes, and the tokens that may stand in each of their states."""
