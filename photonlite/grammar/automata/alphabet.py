"""The alphabet of typed answers: the bytes of UTF-8, and four control characters that valid JSON never contains."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

BoolArray: TypeAlias = npt.NDArray[np.bool_]
UInt8Array: TypeAlias = npt.NDArray[np.uint8]
Int32Array: TypeAlias = npt.NDArray[np.int32]
Int64Array: TypeAlias = npt.NDArray[np.int64]

START, STOP = 2, 3  # pin the beginning and the end of a pattern while it is compiled
COORDINATE, SIZE = NATIVE = 4, 5  # a token that carries a coordinate; a token that carries a width and a height
RESERVED = (START, STOP, *NATIVE)

# Patterns of a point (x, y) and of a box (x and y of its centre, size).
POINT = "\x04\x04"
BOX = "\x04\x04\x05"
# The same as lists of whole numbers, for checkpoints without coordinate heads: a box from its corners.
LISTED_POINT, LISTED_BOX = "[\x04, \x04]", "[\x04, \x04, \x04, \x04]"
