"""Loading a PaliGemma checkpoint: both public layouts of tensor names, checked before any data are read.

| layout | vision tower | decoder | projection |
|---|---|---|---|
| released | `vision_tower.vision_model.` | `language_model.model.` | `multi_modal_projector.linear.` |
| newer libraries | `model.vision_tower.` | `model.language_model.` | `model.multi_modal_projector.linear.` |

Files with a mixture of both prefixes exist, so each name is read by itself. Data are always copied: mapped weights
would change, or the process die, when the file is replaced in place.
"""

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from photonlite.errors import CheckpointError
from photonlite.models.paligemma.config import PaliGemmaConfig
from photonlite.models.paligemma.model import PaliGemmaModel
from photonlite.models.shards import FLOAT_BYTES, TensorInfo, read_headers, read_tensors

_NAMES = (
    (r"^model\.", ""),
    (r"^vision_tower\.(vision_model\.)?", "vision."),
    (r"^language_model\.(model\.)?", "text."),
    (r"^multi_modal_projector\.linear\.", "vision.project."),
    (r"^text\.embed_tokens\.weight", "text.words"),
    (r"^text\.layers\.", "text.blocks."),
    (r"\.input_layernorm\.", ".norm_in."),
    (r"\.post_attention_layernorm\.", ".norm_attended."),
    (r"\.pre_feedforward_layernorm\.", ".norm_mlp."),
    (r"\.post_feedforward_layernorm\.", ".norm_out."),
    (r"^vision\.embeddings\.patch_embedding\.", "vision.patch_embed."),
    (r"^vision\.embeddings\.position_embedding\.weight", "vision.positions"),
    (r"^vision\.encoder\.layers\.", "vision.blocks."),
    (r"^vision\.post_layernorm\.", "vision.norm."),
    (r"\.layer_norm(\d)\.", r".norm\1."),
    (r"\.self_attn\.([qkv])_proj\.", r".\1."),
    (r"\.self_attn\.(?:o|out)_proj\.", ".out."),
    (r"^(text\.blocks\.\d+)\.mlp\.(gate|up|down)_proj\.", r"\1.\2."),
)
"""What replaces what in a public name, one after the other."""

_TIED = re.compile(r"(language_model\.)?lm_head\.weight")  # some files store the embedding a second time
_COMPUTED = ("rotary_emb.inv_freq", "position_ids")  # ends of names of what is computed instead
_PATCHES = "vision.patch_embed.weight"  # stored as a convolution
_NAMED = 5  # tensors in an error message; the others are counted


def load_model(
    files: Iterable[Path],
    config: PaliGemmaConfig,
    first_location: int,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
) -> PaliGemmaModel:
    """Load the model in evaluation mode, without gradients; CheckpointError if a file is unusable.

    Beside the model, host memory holds at most one tensor.
    """
    with torch.device("meta"):
        model = PaliGemmaModel(config, first_location)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    sources = _by_name(read_headers(files))
    _check(sources, shapes)
    state = {name: torch.empty(shape, dtype=dtype, device=device) for name, shape in shapes.items()}
    for name, (_, mapped) in zip(sources, read_tensors(sources.values()), strict=True):
        state[name].copy_(mapped.reshape(shapes[name]))
    model.load_state_dict(state, assign=True)
    return model.requires_grad_(False).eval()


def name_of(key: str) -> str:
    """Translate a tensor's public name to the model's own."""
    for pattern, new in _NAMES:
        key = re.sub(pattern, new, key)
    return key


def _by_name(infos: Iterable[TensorInfo]) -> dict[str, TensorInfo]:
    """Find the place of each tensor; CheckpointError for quantised data, or two tensors for a place."""
    sources: dict[str, TensorInfo] = {}
    for info in infos:
        if _TIED.fullmatch(info.name) or info.name.endswith(_COMPUTED):
            continue
        name = name_of(info.name)
        if info.dtype not in FLOAT_BYTES:
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


def _check(sources: Mapping[str, TensorInfo], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise CheckpointError where tensors do not fit; it shows names and shapes of the files."""
    missing = [name for name in shapes if name not in sources]
    unexpected = [info.name for name, info in sources.items() if name not in shapes]
    misshapen = []
    for name, info in sources.items():
        flat = (info.shape[0], math.prod(info.shape[1:])) if name == _PATCHES else info.shape
        if name in shapes and flat != shapes[name]:
            misshapen.append(f"{info.name} is {list(info.shape)} where {list(shapes[name])} is expected")
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
