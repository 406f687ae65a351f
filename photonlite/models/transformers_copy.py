"""A checkpoint in transformers' own implementation, from the very files that a model was loaded from."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForImageTextToText

from photonlite.errors import CapacityError, CheckpointError
from photonlite.models.shards import INDEX_NAME, SINGLE_NAME

NAME = f"transformers {transformers.__version__}"


def load_copy(
    weights: Sequence[Path], dtype: torch.dtype, device: torch.device, read: Callable[[str], Any]
) -> tuple[Any, Any]:
    """Load a model, and what `read` makes of the folder of its files.

    Raises CheckpointError for files that transformers cannot load, and CapacityError where the device has no room.
    """
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]  # `verify` has one
    with tempfile.TemporaryDirectory(prefix="photonlite-verify-") as folder:
        link_files(weights, Path(folder))
        try:
            found = read(folder)
            arguments: Any = {"dtype": dtype, "output_loading_info": True}
            loaded: Any = AutoModelForImageTextToText.from_pretrained(folder, **arguments)
        except Exception as cause:  # files can be wrong in many ways
            raise CheckpointError(f"transformers cannot load {weights[0]}: {cause!s:.300}") from cause
    if missing := sorted(loaded[1]["missing_keys"]):  # it would fill them with random numbers
        raise CheckpointError(f"transformers finds no {missing[0]} in {weights[0]}, nor {len(missing) - 1} others")
    try:
        return loaded[0].to(device).eval(), found
    except torch.OutOfMemoryError as cause:
        raise CapacityError(
            f"{device} has no room for a second copy of the weights, which {NAME} loads: compare with device='cpu', or "
            "free memory of the card"
        ) from cause


def link_files(weights: Sequence[Path], folder: Path) -> None:
    """Fill a folder with links to a checkpoint's files, under the names that transformers looks for."""
    home = weights[0].absolute().parent
    for path in (*home.glob("*.json"), *home.glob("*.jinja")):
        if path.name != INDEX_NAME or len(weights) > 1:
            (folder / path.name).symlink_to(path)
    for path in weights:
        (folder / (path.name if len(weights) > 1 else SINGLE_NAME)).symlink_to(path.absolute())
