"""The alphabet of typed answers: the bytes of UTF-8, four of which stand for something else; and types of arrays.

Valid JSON holds none of these control characters. Tokens that contain one are never part of a typed answer.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

BoolArray: TypeAlias = npt.NDArray[np.bool_]
UInt8Array: TypeAlias = npt.NDArray[np.uint8]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]

START, STOP = 2, 3
"""Pin the beginning and the end of a pattern while it is compiled."""

COORDINATE, SIZE = NATIVE = 4, 5
"""A token that carries a coordinate; a token that carries a width and a height."""

RESERVED = (START, STOP, *NATIVE)

POINT = "\x04\x04"
"""A point as a pattern: x, y."""

BOX = "\x04\x04\x05"
"""A box as a pattern: x and y of its centre, then its size."""
