"""Writing a checkpoint with quantised weights: a folder that loads as any other.

Tensors have the model's own names, those of a quantised layer `values`, `scale` and, of int4, `shift`; config.json says
so in its `quantization_config`. Other small files are copied.
"""

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import nn

from photonlite.errors import InputError, SettingsError
from photonlite.models.families import LoadOptions
from photonlite.models.loading import ModelFiles
from photonlite.models.precisions import Precisions
from photonlite.models.shards import CONFIG_NAME, INDEX_NAME, SINGLE_NAME, TOKENIZER_NAME, read_headers, watched

_COPIED = ("*.json", "*.jinja", "*.npz", "LICENSE*")
_TYPES = {"F64": torch.float32, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def write_quantised(
    files: ModelFiles,
    precisions: Precisions,
    folder: Path,
    *,
    dtype: torch.dtype | None = None,
    on_read: Callable[[int], object] = lambda count: None,
) -> None:
    """Quantise a checkpoint into a new folder; the rest keeps the type of the files, or `dtype`.

    `on_read` is told the bytes of each tensor that was read. Raises an InputError where the folder exists and is not
    empty, a SettingsError where nothing is quantised or the files are already, and as `models.checkpoint.load_files`.
    """
    if not precisions or files.stored:
        have = f"the files have {files.stored} already" if files.stored else "nothing is to be quantised"
        raise SettingsError(f"{have}: name a checkpoint in full precision, and the precision to write")
    check_free(folder)
    headers = read_headers(files.weights)
    if dtype is None:
        kinds = Counter(info.dtype for info in headers if info.dtype in _TYPES)
        dtype = _TYPES[kinds.most_common(1)[0][0]] if kinds else torch.float32
    with watched(on_read):
        options = LoadOptions("cpu", dtype, precisions=precisions)
        model, _ = files.family.load(files.config, files.tokenizer, files.weights, options)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Renamed when it is whole: a folder that was written half is never taken for a checkpoint.
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as made:
        made_folder = Path(made) / "whole"
        made_folder.mkdir()
        _copy_small(files, precisions, made_folder)
        state = {name: value.contiguous() for name, value in cast(nn.Module, model).state_dict().items()}
        try:
            save_file(state, made_folder / SINGLE_NAME, metadata={"format": "pt"})
        except SafetensorError as cause:  # such as a full disk
            raise InputError(f"{folder} cannot be written ({cause}): make room, or name another place") from cause
        (made_folder / SINGLE_NAME).chmod(0o644)  # safetensors makes it unreadable for others
        if folder.is_dir():
            folder.rmdir()  # it is empty; anything that came into it meanwhile is an error here
        made_folder.rename(folder)


def check_free(folder: Path) -> None:
    """Raise InputError unless a folder can be made, or is there and empty."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise InputError(f"{folder} exists already: name a new folder, nothing is overwritten")


def _copy_small(files: ModelFiles, precisions: Precisions, target: Path) -> None:
    source = files.weights[0].parent
    for pattern in _COPIED:
        for path in source.glob(pattern):
            if path.name not in (CONFIG_NAME, INDEX_NAME, TOKENIZER_NAME):
                shutil.copyfile(path, target / path.name)
    shutil.copyfile(files.tokenizer, target / TOKENIZER_NAME)
    raw: dict[str, Any] = json.loads((source / CONFIG_NAME).read_bytes())
    text = json.dumps(raw | {"quantization_config": precisions.section()}, indent=1)
    (target / CONFIG_NAME).write_text(text, encoding="utf-8")
