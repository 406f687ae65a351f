"""Loading a PaliGemma checkpoint: both public layouts of tensor names, checked before any data are read.

| layout | vision tower | decoder | projection |
|---|---|---|---|
| released | `vision_tower.vision_model.` | `language_model.model.` | `multi_modal_projector.linear.` |
| newer libraries | `model.vision_tower.` | `model.language_model.` | `model.multi_modal_projector.linear.` |

Files with a mixture of both prefixes exist, so each name is read by itself. Data are always copied: mapped weights
would change, or the process die, when the file is replaced in place.
"""

import re
from collections.abc import Iterable
from pathlib import Path

import torch

from photonlite.models.adapters.terms import AdapterPlace, whole_layer
from photonlite.models.families import LoadOptions
from photonlite.models.matching import HEADS, check_tensors, check_tied, given_twice, quantised
from photonlite.models.paligemma.config import PaliGemmaConfig
from photonlite.models.paligemma.model import PaliGemmaModel
from photonlite.models.quantised import WeightStore, give_head, layers_of, load_stored
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

_COMPUTED = ("rotary_emb.inv_freq", "position_ids")  # ends of names of what is computed instead


def load_model(
    files: Iterable[Path], config: PaliGemmaConfig, first_location: int, options: LoadOptions
) -> PaliGemmaModel:
    """Load the model in evaluation mode, without gradients; CheckpointError if a file is unusable.

    Beside the model, host memory holds at most one tensor.
    """
    precisions = options.precisions
    with torch.device("meta"):
        model = PaliGemmaModel(config, first_location)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if precisions.text is not None:
        give_head(model)
    if precisions.stored:
        load_stored(files, model, options)
        return model
    headers, vision = read_headers(files), config.vision
    sources = _by_name(headers)
    check_tensors(sources, shapes, {"vision.patch_embed.weight": (vision.dim, 3, vision.patch, vision.patch)})
    check_tied(headers, sources["text.words"], "remove it if it is left over; no head of its own is supported")
    store = WeightStore(model, layers_of(model, precisions), options)
    for name, (_, mapped) in zip(sources, read_tensors(sources.values()), strict=True):
        store.put(name, mapped.reshape(shapes[name]))
        if precisions.text is not None and name == "text.words":
            store.put("text.head.weight", mapped)
    store.fill()
    return model


def name_of(key: str) -> str:
    """Translate a tensor's public name to the model's own."""
    for pattern, new in _NAMES:
        key = re.sub(pattern, new, key)
    return key


def adapter_place(model: PaliGemmaModel, module: str) -> AdapterPlace | None:
    """Return where the layer of a public name is; None for one that takes no adapter."""
    return whole_layer(model, name_of(f"{module}.weight").removesuffix(".weight"))


def _by_name(infos: Iterable[TensorInfo]) -> dict[str, TensorInfo]:
    """Find the place of each tensor; CheckpointError for quantised data, or two tensors for a place."""
    sources: dict[str, TensorInfo] = {}
    for info in infos:
        if info.name in HEADS or info.name.endswith(_COMPUTED):
            continue
        name = name_of(info.name)
        if info.dtype not in FLOAT_BYTES:
            raise quantised(info)
        if name in sources:
            raise given_twice(info, sources[name])
        sources[name] = info
    return sources
