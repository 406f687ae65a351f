"""Which precision of weights a model is loaded with: what was asked for, or the best that fits the memory."""

import logging
from collections.abc import Sequence
from typing import cast

import psutil
import torch
from torch import nn

from photonlite.config import EngineConfig, Precision, VisionWeights, Weights
from photonlite.device.collectives import RankGroup
from photonlite.errors import CapacityError, SettingsError
from photonlite.models.loading import ModelFiles
from photonlite.models.precisions import Precisions
from photonlite.models.quantised import outline_bytes
from photonlite.runner.memory import WORKSPACE_BYTES, bytes_of_page, longest_pages

_logger = logging.getLogger("photonlite")

_LONGEST = 32_768  # positions of a context that a request is expected to have at most


def choose_precisions(
    files: ModelFiles,
    weights: Weights,
    vision_weights: VisionWeights,
    where: torch.device,
    dtype: torch.dtype,
    config: EngineConfig,
) -> Precisions:
    """Return the precisions to load files with; with "fit" CapacityError, with the numbers, where none fits."""
    vision = None if vision_weights == "auto" else vision_weights
    if weights != "fit":
        return Precisions(None if weights == "auto" else weights, vision)
    if files.stored:
        raise SettingsError(f"weights is 'fit', but the files have {files.stored} already: leave it out")
    ranks = config.tensor_parallel
    if ranks > 1 and not _divides(files, vision, ranks):
        return Precisions(None, vision)  # which loading refuses, and says why
    free, needs = _free_bytes(where, config.gpu_memory_fraction), []
    if where.type != "cuda":
        free //= ranks  # they share the memory
    texts = (None,) if ranks > 1 else files.family.text_precisions(files.config, files.weights)
    for choice in _by_quality(texts, vision):
        need = _needed_bytes(files, choice, dtype, config)
        if need <= free:
            _logger.info(
                "Weights that fit: %s (%s with a request, of %s)", choice or "full", _shown(need), _shown(free)
            )
            return choice
        needs.append(f"{_shown(need)} with {choice}" if choice else f"{_shown(need)} in {dtype}")
    raise CapacityError(
        f"weights is 'fit', but {_shown(free)} of memory are free, and weights and one longest request take "
        f"{', '.join(needs)}: free some, or lower the engine setting 'max_context'"
    )


def _divides(files: ModelFiles, vision: Precision | None, ranks: int) -> bool:
    sizes = files.family.rank_sizes(files.config)
    return vision is None and bool(sizes) and all(size % ranks == 0 for size in sizes.values())


def _by_quality(texts: Sequence[Precision | None], vision: Precision | None) -> Sequence[Precisions]:
    if vision is not None:
        return [Precisions(text, vision) for text in texts]
    pairs: list[tuple[Precision | None, Precision | None]]
    pairs = [(None, None), ("int8", None), ("int8", "int8"), ("int4", None), ("int4", "int8")]
    return [Precisions(*pair) for pair in pairs if pair[0] in texts]


def _needed_bytes(files: ModelFiles, precisions: Precisions, dtype: torch.dtype, config: EngineConfig) -> int:
    """Return the bytes of weights, of keys and values of a longest request, and of workspaces: of rank 0, if several.

    It has the image encoder, and so the most.
    """
    ranks = config.tensor_parallel
    with torch.device("meta"):
        model = files.family.outline(files.config, files.weights, RankGroup(0, ranks) if ranks > 1 else None)
    page_bytes = bytes_of_page(model.shape, dtype, config.page_size) // ranks
    context = min(model.shape.max_context, config.max_context or _LONGEST)
    pages = longest_pages(model.shape, config.page_size) * context // model.shape.max_context + 2
    weights = outline_bytes(cast(nn.Module, model), precisions, dtype)
    return weights + pages * page_bytes + WORKSPACE_BYTES


def _free_bytes(where: torch.device, fraction: float) -> int:
    if where.type != "cuda":
        return int(psutil.virtual_memory().available)
    free, total = torch.cuda.mem_get_info(where)
    return free - int(total * (1 - fraction))


def _shown(count: int) -> str:
    return f"{count / 2**30:.2f} GiB"
