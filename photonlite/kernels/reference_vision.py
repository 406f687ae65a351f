"""The truth of the kernels around the image encoder, in plain PyTorch: runs anywhere, in any floating type."""

import torch
from torch import Tensor
from torch.nn import functional


def patch_rows(crops: Tensor, table: Tensor, patch: int, width: int) -> Tensor:
    """Cut crops into patches, and look up what each pixel value stands for.

    Args:
        crops: uint8 ``[n, C, C, channels]``, C a multiple of `patch`.
        table: The normalised number of each of the 256 values.
        patch: Side of a patch, in pixels.
        width: Numbers of a row: those of a patch, ``channels * patch ** 2``, and zeros behind them.

    Returns:
        ``[n * (C / patch) ** 2, width]``, patches row by row, channel-major inside.
    """
    grid = crops.shape[1] // patch
    patches = table[crops.long()].reshape(len(crops), grid, patch, grid, patch, -1)
    rows = patches.permute(0, 1, 3, 5, 2, 4).flatten(3).flatten(0, 2)
    return functional.pad(rows, (0, width - rows.shape[1]))


def join_views(features: Tensor, tiling: tuple[int, int], grid: int, margin: int) -> Tensor:
    """Put the features of an image's local crops beside those of the whole, patch by patch.

    Local crops are stitched into one map, each without its margins on the sides where another adjoins, and the map is
    averaged into `grid` x `grid` overlapping bins: of n cells along a side, bin i covers
    ``[floor(i n / grid), ceil((i + 1) n / grid))``.

    Args:
        features: ``[1 + th * tw, grid ** 2, D]``, the crop of the whole first; ``[1, grid ** 2, D]`` for tiling (1, 1).
        tiling: Rows and columns of local crops.
        grid: Patches along a side of a crop.
        margin: Patches on each side that a crop shares.

    Returns:
        ``[grid ** 2, 2 D]``: features of the whole, then averages, which are taken in float32 at least.
    """
    overall = features[0]
    if tiling == (1, 1):
        return torch.cat((overall, overall), dim=-1)
    rows, columns = (_cells(count, grid, margin, features.device) for count in tiling)
    crop = rows[0][:, None] * tiling[1] + columns[0]  # [height, width]
    place = rows[1][:, None] * grid + columns[1]
    stitched = features[1 + crop, place].to(torch.promote_types(features.dtype, torch.float32))
    pooled = functional.adaptive_avg_pool2d(stitched.permute(2, 0, 1), (grid, grid))
    return torch.cat((overall, pooled.flatten(1).T.to(features.dtype)), dim=-1)


def _cells(count: int, grid: int, margin: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Give for each cell along one side of the map its crop's index and its place in that crop."""
    window = grid - 2 * margin
    cell = torch.arange(count * window + 2 * margin, device=device)
    index = ((cell - margin).clamp(min=0) // window).clamp(max=count - 1)
    return index, cell - index * window
