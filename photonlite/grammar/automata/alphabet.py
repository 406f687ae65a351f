"""The alphabet of typed answers: the bytes of UTF-8, four of which stand for something else.

Valid JSON holds none of these control characters. Tokens that contain one are never part of a typed answer.
"""

START, STOP = 2, 3
"""Pin the beginning and the end of a pattern while it is compiled."""

COORDINATE, SIZE = NATIVE = 4, 5
"""A token that carries a coordinate; a token that carries a width and a height."""

RESERVED = (START, STOP, *NATIVE)

POINT = "\x04\x04"
"""A point as a pattern: x, y."""

BOX = "\x04\x04\x05"
"""A box as a pattern: x and y of its centre, then its size."""
