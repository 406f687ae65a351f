"""Loading a Qwen-VL checkpoint: both public layouts of tensor names, checked before any data are read.

| layout | vision tower | decoder | head |
|---|---|---|---|
| released with Qwen2.5-VL | `visual.` | `model.` | `lm_head.` |
| newer libraries, Qwen3-VL | `model.visual.` | `model.language_model.` | `lm_head.` |

q, k and v are stored apart and joined here, and so are gate and up. Data are always copied: mapped weights would
change, or the process die, when the file is replaced in place. Of a model for several ranks, each reads its share.
"""

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from photonlite.errors import CheckpointError
from photonlite.models.adapters.terms import AdapterPlace, whole_layer
from photonlite.models.families import LoadOptions
from photonlite.models.matching import check_tensors, check_tied, given_twice, quantised
from photonlite.models.parallel import share_of
from photonlite.models.quantised import WeightStore, give_head, layers_of, load_stored
from photonlite.models.qwen.config import QwenConfig, TextConfig
from photonlite.models.qwen.images import ImageSettings
from photonlite.models.qwen.model import QwenModel
from photonlite.models.qwen.parallel import keep_share, share_tied_head
from photonlite.models.shards import FLOAT_BYTES, TensorInfo, read_headers, read_tensors

HEAD, _WORDS = "text.head.weight", "text.words"

_LAYOUTS = {
    "newer": (("model.visual.", "vision."), ("model.language_model.", "text."), ("lm_head.weight", HEAD)),
    "released": (("visual.", "vision."), ("model.", "text."), ("lm_head.weight", HEAD)),
}
"""Prefixes of the public names and of the model's own, by layout."""

_NEWER, _RELEASED = ("model.visual.", "model.language_model."), ("visual.", "model.")

_NAMES = (
    (r"^text\.embed_tokens\.weight", "text.words"),
    (r"^text\.layers\.", "text.blocks."),
    (r"\.self_attn\.o_proj\.", ".attn.proj."),
    (r"\.self_attn\.([qkv])_norm\.", r".attn.\1_norm."),
    (r"\.input_layernorm\.", ".norm1."),
    (r"\.post_attention_layernorm\.", ".norm2."),
    (r"\.down_proj\.", ".down."),
    (r"^vision\.patch_embed\.proj\.", "vision.patch_embed."),
    (r"^vision\.pos_embed\.weight", "vision.positions"),
    (r"^(vision\.blocks\.\d+)\.attn\.", r"\1."),
    (r"^vision\.deepstack_merger_list\.", "vision.deepstack."),
    (r"^vision\.merger\.ln_q\.", "vision.merger.norm."),
    (r"^vision\.merger\.mlp\.0\.", "vision.merger.mlp.fc1."),
    (r"^vision\.merger\.mlp\.2\.", "vision.merger.mlp.fc2."),
    (r"^(vision\.(?:merger|deepstack\.\d+))\.linear_", r"\1.mlp."),
    (r"\.mlp\.linear_fc", ".mlp.fc"),
)
"""What replaces what in the names of both generations, once the prefix is the model's own."""

_JOINED = ((r"\.self_attn\.([qkv])_proj\.", ".attn.qkv."), (r"\.mlp\.(gate|up)_proj\.", ".mlp.gate_up."))
"""Parts that are stored apart, and the name of the whole."""

_COMPUTED = ("rotary_emb.inv_freq", "rotary_pos_emb.inv_freq")  # ends of names of tables that are computed instead


@dataclass(frozen=True)
class Place:
    """Where a tensor of a file belongs: a parameter, and which of its joined parts; None for the whole."""

    name: str
    part: str | None = None

    def __str__(self) -> str:
        return self.name if self.part is None else f"{self.name} ({self.part})"


def load_model(files: Iterable[Path], config: QwenConfig, images: ImageSettings, options: LoadOptions) -> QwenModel:
    """Load the model in evaluation mode, without gradients; CheckpointError if a file is unusable.

    Beside the model, host memory holds at most one tensor.
    """
    ranks, precisions = options.ranks, options.precisions
    rank, count = (0, 1) if ranks is None else (ranks.rank, ranks.count)
    with torch.device("meta"):
        model = QwenModel(config, images)
    wanted = _shapes(model, config.text)
    copied = precisions.text is not None and give_head(model)
    if precisions.stored:
        load_stored(files, model, options)
        return model
    headers, vision = read_headers(files), config.vision
    sources = _by_place(headers, tied=config.text.tied)
    patches = (vision.dim, 3, vision.frames, vision.patch, vision.patch)
    check_tensors(sources, wanted, {Place("vision.patch_embed.weight"): patches})
    if config.text.tied:
        check_tied(
            headers,
            sources[Place(_WORDS)],
            "if the head was trained by itself, set tie_word_embeddings to false (also in text_config), else remove it",
        )
    if ranks is not None:
        with torch.device("meta"):
            keep_share(model, ranks)
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    rows = dict(part for name, shape in shapes.items() for part in _places(name, shape[0], config.text, count))
    store = WeightStore(model, layers_of(model, precisions), options)
    own = {place: info for place, info in sources.items() if place in rows}
    for place, (_, mapped) in zip(own, read_tensors(own.values()), strict=True):
        size = rows[place].stop - rows[place].start, *shapes[place.name][1:]
        value = share_of(mapped.reshape(wanted[place]), size, rank)
        store.put(place.name, value, rows[place])
        if copied and place.name == _WORDS:
            store.put(HEAD, value)
    store.fill()
    if ranks is not None:
        share_tied_head(model, ranks)
    return model


def place_of(key: str, layout: str) -> Place | None:
    """Translate a tensor's name in a public layout; None for a name that has no place in it."""
    found = next(((old, new) for old, new in _LAYOUTS[layout] if key.startswith(old)), None)
    if found is None:
        return None
    name = found[1] + key.removeprefix(found[0])
    for pattern, new in _NAMES:
        name = re.sub(pattern, new, name)
    for pattern, new in _JOINED:
        if match := re.search(pattern, name):
            return Place(name.replace(match[0], new), match[1])
    return Place(name)


def adapter_place(model: QwenModel, module: str) -> AdapterPlace | None:
    """Return where the layer of a public name is, or its rows of joined ones; None for one that takes no adapter."""
    found = place_of(f"{module}.weight", "newer" if module.startswith(_NEWER) else "released")
    whole = None if found is None else whole_layer(model, found.name.removesuffix(".weight"))
    if found is None or whole is None:
        return None
    rows = dict(_places(found.name, whole.stop, model.config.text)).get(found)
    return None if rows is None else AdapterPlace(whole.layer, rows.start, rows.stop)


def _by_place(infos: Iterable[TensorInfo], *, tied: bool) -> dict[Place, TensorInfo]:
    """Find the place of each tensor; CheckpointError for mixed layouts, quantised data, or two tensors for a place."""
    infos = [info for info in infos if not info.name.endswith(_COMPUTED)]
    layout = _layout(infos)
    sources: dict[Place, TensorInfo] = {}
    for info in infos:
        place = place_of(info.name, layout) or Place(info.name)
        if tied and place.name == HEAD:
            continue  # stored a second time, see `check_tied`
        if info.dtype not in FLOAT_BYTES:
            raise quantised(info)
        if place in sources:
            raise given_twice(info, sources[place])
        sources[place] = info
    return sources


def _layout(infos: Iterable[TensorInfo]) -> str:
    newer = [info.name for info in infos if info.name.startswith(_NEWER)]
    released = [info.name for info in infos if info.name.startswith(_RELEASED) and not info.name.startswith(_NEWER)]
    if newer and released:
        raise CheckpointError(
            f"the tensors mix two layouts of names, such as {newer[0]} and {released[0]}: use the files of one release"
        )
    return "newer" if newer else "released"


def _shapes(model: QwenModel, text: TextConfig) -> dict[Place, tuple[int, ...]]:
    """Return the shape of every stored part of a whole model."""
    found = {}
    for name, value in model.state_dict().items():
        for place, rows in _places(name, len(value), text):
            found[place] = (rows.stop - rows.start, *value.shape[1:])
    return found


def _places(name: str, rows: int, text: TextConfig, count: int = 1) -> list[tuple[Place, slice]]:
    """Return the stored parts of a parameter, and the rows of each, in a model for `count` ranks."""
    if ".attn.qkv." in name:
        heads, kv_heads = text.heads // count, text.kv_heads // count
        sizes = {"q": heads * text.head_dim} | dict.fromkeys("kv", kv_heads * text.head_dim)
    elif ".mlp.gate_up." in name:
        sizes = dict.fromkeys(("gate", "up"), rows // 2)
    else:
        return [(Place(name), slice(0, rows))]
    ends = list(itertools.accumulate(sizes.values()))
    parts = zip(sizes.items(), ends, strict=True)
    return [(Place(name, part), slice(end - size, end)) for (part, size), end in parts]
