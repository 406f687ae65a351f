"""The public decoder of outlines: 16 codes of a segment to a mask of its box.

```
codes ── table ──> [C, 4, 4] ── 1x1, relu ── 2 residual blocks ── 4 x (transposed 4x4, relu) ── 1x1 ──> [64, 64]
```

Its weights are a file of their own, `vae-oid.npz`, which the makers publish beside the checkpoints. All sizes come from
the shapes in that file. A mask is inside where it is above 0.
"""

from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from photonlite.errors import CheckpointError

CODES = 16  # of a mask, row by row
_SIDE = 4  # of their square
_TABLE = "_vq_vae._embedding"
_MOST_BYTES = 2**28  # unpacked; the published file has a few megabytes


class ResidualBlock(nn.Module):
    """``x + conv1(relu(conv3(relu(conv3(x)))))``; numbered as in the public file."""

    def __init__(self, width: int) -> None:
        super().__init__()
        square, point = nn.Conv2d(width, width, 3, padding=1), nn.Conv2d(width, width, 1)
        self.net = nn.Sequential(square, nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), point)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.net(x)


class MaskDecoder:
    """Decodes masks on the CPU; CheckpointError for a file that is not whole or has other shapes."""

    def __init__(self, path: Path) -> None:
        values = _read(path)
        try:
            self._table = values.pop(_TABLE)  # [codes, C]
            self._decoder = _network(values)
            state = {name.removeprefix("decoder."): value for name, value in values.items()}
            self._decoder.load_state_dict(state)
        except (KeyError, RuntimeError, ValueError, IndexError) as cause:
            raise CheckpointError(
                f"{path} does not hold the decoder of outlines ({str(cause).splitlines()[0]:.200}): give the file "
                "vae-oid.npz that the makers of the checkpoint publish"
            ) from cause
        self._decoder.requires_grad_(False).eval()

    @property
    def codes(self) -> int:
        return len(self._table)

    def __call__(self, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Map codes, `[16]`, to a mask `[64, 64]`."""
        with torch.inference_mode():
            x = self._table[torch.from_numpy(codes)].T.reshape(1, -1, _SIDE, _SIDE)
            mask: npt.NDArray[np.float32] = self._decoder(x)[0, 0].numpy()
            return mask


def _network(values: dict[str, Tensor]) -> nn.Sequential:
    """Build the decoder in the sizes of its weights; its layers have the numbers of the public file."""
    width, dim = values["decoder.0.weight"].shape[:2]
    layers: list[nn.Module] = [nn.Conv2d(dim, width, 1), nn.ReLU(), ResidualBlock(width), ResidualBlock(width)]
    for number in range(4, 12, 2):
        into, out = values[f"decoder.{number}.weight"].shape[:2]
        layers += [nn.ConvTranspose2d(into, out, 4, stride=2, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(values["decoder.12.weight"].shape[1], 1, 1))


def _read(path: Path) -> dict[str, Tensor]:
    try:
        with np.load(path, allow_pickle=False) as stored:
            if (size := sum(part.file_size for part in stored.zip.infolist())) > _MOST_BYTES:
                raise ValueError(f"it unpacks to {size} bytes, the limit is {_MOST_BYTES}")
            names = [name for name in stored.files if name == _TABLE or name.startswith("decoder.")]
            return {name: torch.from_numpy(np.ascontiguousarray(stored[name], np.float32)) for name in names}
    except (OSError, ValueError, BadZipFile, AttributeError, TypeError, MemoryError) as cause:
        raise CheckpointError(f"{path} cannot be read as an .npz file of weights: {cause}") from cause
