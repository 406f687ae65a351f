"""`quantize`: a checkpoint rounded to 8 or 4 bits, written as a folder that loads as any other."""

import os
from pathlib import Path

import torch
from tqdm import tqdm

from photonlite.config import VisionWeights, Weights
from photonlite.device.names import resolve_dtype
from photonlite.errors import SettingsError
from photonlite.models.loading import resolve
from photonlite.models.precisions import Precisions, check_precisions
from photonlite.models.shards import stored_bytes
from photonlite.models.writing import check_free, write_quantised


def quantize(
    model: str | os.PathLike[str] | None,
    folder: str | os.PathLike[str],
    *,
    weights: Weights = "int4",
    vision_weights: VisionWeights = "auto",
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
    progress: bool = False,
) -> Path:
    """Write a checkpoint with quantised weights into a new folder, and return its path.

    Loading it takes no time for rounding and as little memory as it has bytes; answers are those of
    :func:`photonlite.load` with the same precisions. It is made on the CPU.

    Args:
        model: As :func:`photonlite.load` takes it.
        folder: A folder that does not exist or is empty.
        weights: Of the text decoder: "int4", "int8" or "fp8", or "auto" for the type of the files.
        vision_weights: Of the image encoder: "int8", "fp8" or "auto".
        dtype: Of everything else: "auto" for the type of the files, "float32", "bfloat16" or "float16".
        revision: Branch, tag or commit of a Hub repository.
        progress: Whether a bar on stderr shows how much has been read.

    Raises:
        InputError: The folder has files in it.
        SettingsError: An unknown precision or type, "fit", nothing to quantise, or a checkpoint that is quantised.
        ModelNotFoundError, ConfigError, CheckpointError: As for :func:`photonlite.load`.
    """
    check_precisions(weights, vision_weights)
    if weights == "fit":
        raise SettingsError("weights is 'fit', which depends on the machine that loads: give int8, fp8 or int4")
    target = Path(folder)
    check_free(target)
    kind = None if dtype == "auto" else resolve_dtype(dtype, torch.device("cpu"))
    files = resolve(model, revision=revision)
    text, vision = None if weights == "auto" else weights, None if vision_weights == "auto" else vision_weights
    precisions = Precisions(text, vision)
    total = stored_bytes(files.weights)
    with tqdm(total=total, unit="B", unit_scale=True, desc="quantize", disable=None if progress else True) as bar:
        write_quantised(files, precisions, target, dtype=kind, on_read=bar.update)
    return target
