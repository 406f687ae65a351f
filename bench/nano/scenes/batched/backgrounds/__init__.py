"""Backgrounds of training scenes: one function a kind, from a `Canvas` to [B, 3, S, S], about in [0, 1].

None draws a closed square, star, heart or triangle that stands alone and is as large as an object, nor a circle of one
bold colour; none draws what held-out scenes keep for themselves.
"""

from collections.abc import Callable

from torch import Tensor

from bench.nano.scenes.batched.backgrounds import drawn, filtered, grain, photographic, plain, rough, scattered, strewn
from bench.nano.scenes.batched.painting import Canvas

# Twice and more: on photographs a detector sees the most that is none of its objects.
_NATURAL = 2 * (*photographic.KINDS, *scattered.KINDS, *filtered.KINDS, *rough.KINDS) + 4 * strewn.KINDS
KINDS: tuple[Callable[[Canvas], Tensor], ...] = (
    *plain.KINDS, *drawn.KINDS, *grain.KINDS, *plain.WOVEN, *_NATURAL,
)  # fmt: skip
