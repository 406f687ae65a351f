"""The alphabet of typed answers: the bytes of UTF-8, four of which stand for something else.

No text that is valid JSON holds these control characters, so nothing is lost. Tokens whose bytes hold one of them are
never part of a typed answer.
"""

START = 2
"""Stands before a pattern while it is compiled: it pins the beginning of an answer."""

STOP = 3
"""Stands behind it and pins the end."""

COORDINATE = 4
"""A coordinate: a token that carries a number, and no text."""

SIZE = 5
"""A size: a token that carries a width and a height, and no text."""

RESERVED = (START, STOP, COORDINATE, SIZE)
"""The letters that no text holds."""

NATIVE = (COORDINATE, SIZE)
"""The letters that stand for numbers."""

POINT = "\x04\x04"
"""A point as a pattern: x, y."""

BOX = "\x04\x04\x05"
"""A box as a pattern: x and y of its centre, then width and height."""
