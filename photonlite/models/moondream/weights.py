"""Loading a Moondream checkpoint: all layouts of tensor names, checked before any data are read.

| layout | example | where |
|---|---|---|
| public | `model.text.blocks.0.attn.qkv.weight` | the Hub releases |
| bare | `text.blocks.0.attn.qkv.weight` | the model's own names, as `state_dict` gives them |
| flat | `text_model.transformer.h.0.mixer.Wqkv.weight` | training, with the Fourier matrices transposed |

Data are always copied: mapped weights would change, or the process die, when the file is replaced in place, and the
kernel could drop pages of an idle model. Files are mapped in parts, so that memory never holds the weights twice.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal

import torch

from photonlite.errors import CheckpointError
from photonlite.models.moondream.config import MoondreamConfig, RegionConfig
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.shards import FLOAT_BYTES, TensorInfo, read_headers, read_tensors

IGNORED = frozenset(
    {"freqs_cis", "inv_freq", "cos_cached", "sin_cached", "attn_mask", "causal_mask", "k_cache", "v_cache"}
)
"""Last parts of names of buffers in some files that are computed instead: rotary tables, masks, KV caches."""

_COMPILED = "._orig_mod"  # in names of compiled modules
_VISUAL = "vision_encoder.encoder.model.visual."
_FLAT_PREFIXES = {
    f"{_VISUAL}patch_embed.linear.": "vision.patch_emb.",
    f"{_VISUAL}pos_embed": "vision.pos_emb",
    f"{_VISUAL}blocks.": "vision.blocks.",
    f"{_VISUAL}norm.": "vision.post_ln.",
    "vision_encoder.projection.mlp.": "vision.proj_mlp.",
    "text_model.transformer.embd.wte.weight": "text.wte",
    "text_model.transformer.h.": "text.blocks.",
    "text_model.lm_head.ln.": "text.post_ln.",
    "text_model.lm_head.linear.": "text.lm_head.",
    "region_model.": "region.",
}
_FLAT_PARTS = {
    ".norm1.": ".ln1.",
    ".norm2.": ".ln2.",
    ".mixer.Wqkv.": ".attn.qkv.",
    ".mixer.out_proj.": ".attn.proj.",
    ".coordinate_": ".coord_",
    ".coord_head.": ".coord_decoder.",
    ".size_head.": ".size_decoder.",
    "_features.weight": "_features",
}
_FLAT_FEATURES = "_features.weight"  # ends names of the transposed matrices
_QUANTISED_PARTS = (".packed", ".zero_point", ".moe_quant.")
_NAMED = 5  # tensors in an error message; the others are counted


def load_model(
    files: Iterable[Path], config: MoondreamConfig, *, device: torch.device | str, dtype: torch.dtype
) -> MoondreamModel:
    """Load the model in evaluation mode, without gradients; CheckpointError if a file is unusable.

    Beside the model, host memory holds at most one tensor. Whether the region heads are linear and have a layer norm is
    read from the files: releases of one family differ in it, and no public configuration says it.
    """
    sources = _by_parameter(read_headers(files))
    config = dataclasses.replace(config, region=_region_as_stored(config.region, sources))
    with torch.device("meta"):
        model = MoondreamModel(config)
    _check({name: tuple(value.shape) for name, value in model.state_dict().items()}, sources)
    state = {}
    for name, (info, mapped) in zip(sources, read_tensors(sources.values()), strict=True):
        value = mapped.T if info.name.endswith(_FLAT_FEATURES) else mapped
        state[name] = torch.empty(value.shape, dtype=dtype, device=device).copy_(value)
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(False).eval()


def _region_as_stored(region: RegionConfig, sources: Collection[str]) -> RegionConfig:
    found: dict[str, Literal["linear", "mlp"]] = {"weight": "linear", "fc1.weight": "mlp"}
    decoder = next((kind for name, kind in found.items() if f"region.coord_decoder.{name}" in sources), region.decoder)
    return dataclasses.replace(region, decoder=decoder, norm=any(name.startswith("region.ln.") for name in sources))


def parameter_name(key: str) -> str:
    """Translate a tensor's name in any layout to the model's own; unknown names pass through."""
    key = key.replace(_COMPILED, "")
    for old, new in _FLAT_PREFIXES.items():
        if key.startswith(old):
            name = new + key.removeprefix(old)
            for old_part, new_part in _FLAT_PARTS.items():
                name = name.replace(old_part, new_part)
            return name
    return key.removeprefix("model.")


def _by_parameter(infos: Iterable[TensorInfo]) -> dict[str, TensorInfo]:
    sources: dict[str, TensorInfo] = {}
    for info in infos:
        name = parameter_name(info.name)
        if name.rpartition(".")[2] in IGNORED:
            continue
        if info.dtype not in FLOAT_BYTES or any(part in f".{name}" for part in _QUANTISED_PARTS):
            raise CheckpointError(
                f"{info.file} is quantised ({info.name} has type {info.dtype}), which is not supported: use a release "
                f"in {', '.join(FLOAT_BYTES)}"
            )
        if name in sources:
            raise CheckpointError(
                f"{info.name} in {info.file} and {sources[name].name} in {sources[name].file} are the same parameter: "
                "remove one of them"
            )
        sources[name] = info
    return sources


def _check(expected: Mapping[str, tuple[int, ...]], sources: Mapping[str, TensorInfo]) -> None:
    """Raise CheckpointError where tensors do not fit; it shows names and shapes of the files."""
    missing = [name for name in expected if name not in sources]
    unexpected = [info.name for name, info in sources.items() if name not in expected]
    misshapen = []
    for name, info in sources.items():
        shape = expected.get(name, ())[:: -1 if info.name.endswith(_FLAT_FEATURES) else 1]
        if name in expected and info.shape != shape:
            misshapen.append(f"{info.name} is {list(info.shape)} where {list(shape)} is expected")
    problems = [
        f"{len(items)} {what}: {'; '.join(items[:_NAMED])}{'; ...' if len(items) > _NAMED else ''}"
        for what, items in (("missing", missing), ("unexpected", unexpected), ("wrongly shaped", misshapen))
        if items
    ]
    if problems:
        where = next(iter(sources.values())).file.parent if sources else "the checkpoint"
        raise CheckpointError(
            f"the tensors in {where} do not fit its config.json: {'. '.join(problems)}. Check that the weights are "
            "whole and that config.json belongs to them"
        )
