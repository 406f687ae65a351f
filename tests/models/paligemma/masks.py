"""Random weights of the decoder of outlines, under the public names, and what they compute in plain NumPy."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def random_weights(seed: int = 0, dim: int = 10, width: int = 8) -> dict[str, npt.NDArray[np.float32]]:
    """Return a file's arrays: table, first layer, two residual blocks, four transposed layers, last layer."""
    generator = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"decoder.0": (width, dim, 1, 1)}
    for block in (2, 3):
        shapes |= {
            f"decoder.{block}.net.{layer}": (width, width, size, size) for layer, size in ((0, 3), (2, 3), (4, 1))
        }
    widths = (width, width, width // 2, width // 4, 3)
    for place, layer in enumerate((4, 6, 8, 10)):
        shapes[f"decoder.{layer}"] = (widths[place], widths[place + 1], 4, 4)
    shapes["decoder.12"] = (1, widths[-1], 1, 1)
    made = {"_vq_vae._embedding": generator.normal(size=(128, dim))}
    for name, shape in shapes.items():
        out = shape[1] if name in ("decoder.4", "decoder.6", "decoder.8", "decoder.10") else shape[0]
        made[f"{name}.weight"] = generator.normal(size=shape) * np.prod(shape[1:]) ** -0.5
        made[f"{name}.bias"] = generator.normal(size=out) * 0.3
    return {name: value.astype(np.float32) for name, value in made.items()}


def decoded(weights: dict[str, npt.NDArray[np.float32]], codes: list[int]) -> Array:
    """Return the mask of 16 codes, ``[64, 64]``: every output computed from its definition."""

    def of(name: str) -> tuple[Array, Array]:
        return weights[f"{name}.weight"].astype(np.float64), weights[f"{name}.bias"].astype(np.float64)

    x = weights["_vq_vae._embedding"].astype(np.float64)[codes].reshape(4, 4, -1).transpose(2, 0, 1)
    x = np.maximum(convolved(x, *of("decoder.0")), 0)
    for block in (2, 3):
        y = np.maximum(convolved(x, *of(f"decoder.{block}.net.0")), 0)
        y = np.maximum(convolved(y, *of(f"decoder.{block}.net.2")), 0)
        x = x + convolved(y, *of(f"decoder.{block}.net.4"))
    for layer in (4, 6, 8, 10):
        x = np.maximum(spread(x, *of(f"decoder.{layer}")), 0)
    mask: Array = convolved(x, *of("decoder.12"))[0]
    return mask


def convolved(x: Array, weight: Array, bias: Array) -> Array:
    """Correlate ``[in, H, W]`` with ``[out, in, k, k]``, zeros around it."""
    size = weight.shape[-1]
    padded = np.pad(x, ((0, 0), (size // 2,) * 2, (size // 2,) * 2))
    out = np.empty((len(weight), *x.shape[1:]))
    for row, column in np.ndindex(*x.shape[1:]):
        seen = padded[:, row : row + size, column : column + size]
        out[:, row, column] = np.einsum("oikl,ikl->o", weight, seen) + bias
    return out


def spread(x: Array, weight: Array, bias: Array) -> Array:
    """Add each input's weights ``[in, out, 4, 4]`` to an output of twice the size: two steps apart, one cut off."""
    rows, columns = x.shape[1:]
    out = np.zeros((weight.shape[1], 2 * rows + 2, 2 * columns + 2))
    for row, column in np.ndindex(rows, columns):
        place = slice(2 * row, 2 * row + 4), slice(2 * column, 2 * column + 4)
        out[:, *place] += np.einsum("i,iokl->okl", x[:, row, column], weight)
    cut: Array = out[:, 1:-1, 1:-1] + bias[:, None, None]
    return cut
