"""PyTorch tensors as arrays, without importing PyTorch: the caller who has one has imported it.

| shape | is |
|---|---|
| [height, width] | grey |
| [1, 3 or 4, height, width] | channels first, as torchvision has them |
| [height, width, 1, 3 or 4] | channels last, as arrays have them; unless the first number is 1, 3 or 4 as well |
"""

from __future__ import annotations

from typing import Any, Final, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt

from photonlite.errors import ImageShapeError

_CHANNELS: Final = (1, 3, 4)


class Tensor(Protocol):
    """What is used of a `torch.Tensor`."""

    @property
    def shape(self) -> Any: ...
    def detach(self) -> Any: ...
    def is_floating_point(self) -> bool: ...


def is_tensor(source: object) -> TypeGuard[Tensor]:
    """Whether something is a `torch.Tensor`, or of a subclass such as torchvision's."""
    return any(kind.__module__ == "torch" and kind.__name__ == "Tensor" for kind in type(source).__mro__)


def tensor_to_array(tensor: Tensor) -> npt.NDArray[Any]:
    """Return a tensor's values with channels last, which on a CPU may share its memory; waits for a GPU.

    Raises an `ImageShapeError` for other shapes, and for tensors without plain values. The array's type and values are
    checked where it is decoded.
    """
    shape = list(tensor.shape)
    first, last = len(shape) == 3 and shape[0] in _CHANNELS, len(shape) == 3 and shape[2] in _CHANNELS
    if not (first or last or len(shape) == 2):
        hint = "; one image at a time: tensor[0]" if len(shape) == 4 else ""
        raise ImageShapeError(
            f"a tensor of shape {shape} is not an image: hand in [3, height, width] or [height, width, 3]{hint}"
        )
    try:
        values = tensor.detach().cpu()
        # numpy has no bfloat16.
        array: npt.NDArray[Any] = np.asarray((values.float() if tensor.is_floating_point() else values).numpy())
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:  # sparse, quantized, without memory
        reason = " ".join(str(error).split())[:200]
        raise ImageShapeError(
            f"the values of a tensor of shape {shape} cannot be read ({reason}): hand in a dense one, of uint8 or of "
            "floats in [0, 1]"
        ) from error
    return array.transpose(1, 2, 0) if first else array
