"""`quantize`: a checkpoint rounded to 8 or 4 bits, written as a folder that loads as any other."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import nn
from tqdm import tqdm

from photonlite.api.model import VisionModel
from photonlite.api.tasks import ImageInput
from photonlite.config import VisionWeights, Weights
from photonlite.device.names import resolve_dtype
from photonlite.errors import SettingsError
from photonlite.models.calibration import Moments, input_moments
from photonlite.models.checkpoint import load_files
from photonlite.models.loading import ModelFiles, resolve
from photonlite.models.precisions import Precisions, check_precisions
from photonlite.models.shards import stored_bytes
from photonlite.models.writing import check_free, write_quantised
from photonlite.request import RequestSettings

_CONTEXT = 2048  # positions that describing an image takes at most
_SHORT: RequestSettings = {"max_tokens": 48, "max_objects": 4}


def quantize(
    model: str | os.PathLike[str] | None,
    folder: str | os.PathLike[str],
    *,
    weights: Weights = "int4",
    vision_weights: VisionWeights = "auto",
    dtype: str | torch.dtype = "auto",
    revision: str | None = None,
    images: Sequence[ImageInput] = (),
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
        images: Images like those of later questions, a few dozen or hundreds, about which the model answers first:
            weights in int4 are then rounded for what really goes into each layer, which lessens the error of its
            results by a third to a half. That takes the memory of the model in float32.
        progress: Whether a bar on stderr shows how much has been read.

    Raises:
        InputError: The folder has files in it.
        ImageError: One of `images` cannot be read.
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
    if images:
        precisions = replace(precisions, moments=_calibrate(files, precisions, images, progress))
    total = stored_bytes(files.weights)
    with tqdm(total=total, unit="B", unit_scale=True, desc="quantize", disable=None if progress else True) as bar:
        write_quantised(files, precisions, target, dtype=kind, on_read=bar.update)
    return target


def _calibrate(files: ModelFiles, precisions: Precisions, images: Sequence[ImageInput], progress: bool) -> Moments:
    """Describe each image, and look for something that is named there, with the model in float32."""
    if precisions.text != "int4":
        given = precisions.text or "auto"
        raise SettingsError(f"images were given, but weights is {given!r}: only int4 makes use of them")
    if files.stored:
        raise SettingsError(f"the files have {files.stored} already: name a checkpoint in full precision")
    where, dtype = torch.device("cpu"), torch.float32
    loaded = load_files(files, device=where, dtype=dtype, max_context=_CONTEXT)
    with (
        input_moments(cast(nn.Module, loaded.model), precisions) as moments,
        VisionModel(loaded, where, dtype) as model,
        tqdm(images, unit="image", desc="calibrate", disable=None if progress else True) as bar,
    ):
        for image in bar:
            kept = model.encode_image(image)
            words = ["object"]
            if "caption" in model.skills:
                words += model.caption(kept, length="short", settings=_SHORT)["caption"].split()
            if "detect" in model.skills:
                model.detect(kept, max(words, key=len), settings=_SHORT)
    return moments
