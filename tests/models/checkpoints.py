"""Checkpoints for tests: the golden one with renamed, missing or sharded tensors, or in a Hub cache."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

GOLDEN = Path(__file__).parents[1] / "golden" / "moondream-tiny"
SMALL: dict[str, Any] = {
    "model_type": "moondream3",
    "text": {"dim": 16, "ff_dim": 32, "n_layers": 2, "n_heads": 2, "vocab_size": 272} | {"tau": False},
    "vision": {"enc_dim": 8, "enc_n_layers": 1, "enc_ff_dim": 8, "enc_n_heads": 2, "enc_patch_size": 14}
    | {"proj_out_dim": 16, "proj_inner_dim": 8},
    "region": {"dim": 16, "coord_feat_dim": 8, "size_feat_dim": 8, "coord_out_dim": 32, "size_out_dim": 64},
}
"""A Moondream 3 without experts: linear region heads and their layer norm."""


def golden_tensors() -> dict[str, Tensor]:
    return load_file(GOLDEN / "model.safetensors")


def make_folder(folder: Path, tensors: Mapping[str, Tensor] | None = None, *, tokenizer: bool = True) -> Path:
    """Copy the golden checkpoint into a folder, with other tensors if given."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(GOLDEN / "config.json", folder)
    if tokenizer:
        shutil.copy(GOLDEN / "tokenizer.json", folder)
    if tensors is None:
        shutil.copy(GOLDEN / "model.safetensors", folder)
    else:
        save_file(dict(tensors), folder / "model.safetensors")
    return folder


def shard(folder: Path, tensors: Mapping[str, Tensor], count: int = 3) -> dict[str, str]:
    """Write tensors as shards with an index, in place of model.safetensors; return the weight map."""
    (folder / "model.safetensors").unlink(missing_ok=True)
    weight_map: dict[str, str] = {}
    for n in range(count):
        part = dict(list(tensors.items())[n::count])
        save_file(part, folder / f"model-{n + 1:05}-of-{count:05}.safetensors")
        weight_map |= dict.fromkeys(part, f"model-{n + 1:05}-of-{count:05}.safetensors")
    write_index(folder, weight_map)
    return weight_map


def write_index(folder: Path, weight_map: Mapping[str, object]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def in_hub_cache(hub: Path, repo: str, files: Path, commit: str = "c" * 40, ref: str = "main") -> Path:
    """Put the files of a folder into a Hub cache as one commit of a repository; return the snapshot folder."""
    root = hub / f"models--{repo.replace('/', '--')}"
    snapshot = root / "snapshots" / commit
    for place in (root / "blobs", root / "refs", snapshot):
        place.mkdir(parents=True, exist_ok=True)
    (root / "refs" / ref).write_text(commit)
    for number, file in enumerate(sorted(files.iterdir())):
        blob = root / "blobs" / f"{number:064}{commit[:4]}"
        shutil.copy(file, blob)
        (snapshot / file.name).symlink_to(blob)
    return snapshot


def random_state(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
