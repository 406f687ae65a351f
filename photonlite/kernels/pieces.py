"""How a row of any length lies in registers: in two pieces, each as wide as a power of two.

```
1152 = 1024 + 128         2048 = 2048         4304 = 4096 + 208 (of 256)         10240 = 8192 + 2048
```

Arrays of a kernel are powers of two. To fill a row up to the next one would waste up to half of the arithmetic, which
is what limits these kernels once each number is read and written no more than once.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pieces:
    """The two pieces of a row.

    Attributes:
        left: Numbers of the first piece.
        left_width: The power of two that holds them.
        right: Numbers of the second piece, 0 for none.
        right_width: The power of two that holds them; 1 for none.
    """

    left: int
    left_width: int
    right: int
    right_width: int

    def warps(self, per_thread: int) -> int:
        """Give the warps that hold a row, about `per_thread` numbers with each thread."""
        return max(1, min(16, max(self.left_width, self.right_width) // (32 * per_thread)))


def join_pieces(left: int, right: int) -> Pieces:
    """Hold rows that are given in two pieces, of at least 1 number and of any number."""
    left_width, right_width = (1 << max(0, size - 1).bit_length() for size in (left, right))
    return Pieces(left, left_width, right, right_width)


def split_row(dim: int) -> Pieces:
    """Cut rows of `dim` numbers behind the largest power of two that they hold."""
    left = 1 << (dim.bit_length() - 1)
    return join_pieces(left, dim - left)
