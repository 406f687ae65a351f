"""Loading a Moondream checkpoint: all layouts of tensor names, checked before any data are read.

| layout | example | where |
|---|---|---|
| public | `model.text.blocks.0.attn.qkv.weight` | the Hub releases |
| bare | `text.blocks.0.attn.qkv.weight` | the model's own names, as `state_dict` gives them |
| flat | `text_model.transformer.h.0.mixer.Wqkv.weight` | training and Moondream 3.1, Fourier matrices transposed |

Experts in FP8 (e4m3, a float32 scale for each output row) stay so, and so do layers in int4 (see `moondream.int4`);
everything else is cast.

Data are always copied: mapped weights would change, or the process die, when the file is replaced in place, and the
kernel could drop pages of an idle model. Files are mapped in parts, so that memory never holds the weights twice. Of a
model for several ranks, each reads its share.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from photonlite.device.collectives import RankGroup
from photonlite.errors import SettingsError
from photonlite.models.families import LoadOptions
from photonlite.models.matching import check_tensors, given_twice, quantised
from photonlite.models.moondream.config import MoondreamConfig, TextConfig
from photonlite.models.moondream.int4 import INT4, check_int4, find_int4, read_int4, without_int4
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.moondream.parallel import SUMMED_BIASES, keep_share
from photonlite.models.parallel import share_of
from photonlite.models.precisions import Precisions
from photonlite.models.quantised import WeightStore, layers_of, load_stored, replace_layers
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
    ".gate.": ".mlp.router.",
    ".mlp.experts.": ".mlp.fc1.",
    ".mlp.output_experts.": ".mlp.fc2.",
    ".moe_quant.up_scale": ".mlp.fc1.scale",
    ".moe_quant.down_scale": ".mlp.fc2.scale",
    ".tau_": ".attn.tau.",
}
_FLAT_FEATURES = "_features.weight"  # ends names of the transposed matrices
_FLAT_TAU = ".attn.tau.wqwv"  # ends names of two matrices, one above the other
_FP8 = "F8_E4M3"
_SKIPPED_PART = ".kv_quantizer."  # scales of an FP8 cache: the engine estimates its own


@dataclass(frozen=True)
class Source:
    """Where a parameter is stored: a tensor, transposed, or the upper (0) or lower (1) half of one."""

    info: TensorInfo
    transposed: bool = False
    half: int | None = None

    def stored_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape that the tensor must have for a parameter of a shape."""
        if self.half is not None:
            return (2 * shape[0], *shape[1:])
        return shape[::-1] if self.transposed else shape

    def value(self, mapped: Tensor) -> Tensor:
        if self.half is not None:
            return mapped.chunk(2)[self.half]
        return mapped.T if self.transposed else mapped


def load_model(files: Iterable[Path], config: MoondreamConfig, options: LoadOptions) -> MoondreamModel:
    """Load the model in evaluation mode, without gradients; CheckpointError if a file is unusable.

    Beside the model, host memory holds at most one tensor. Whether the region heads are linear and have a layer norm,
    whether experts are in FP8 and layers in int4 is read from the files: no public configuration says it.
    """
    headers, precisions, ranks = read_headers(files), options.precisions, options.ranks
    own = precisions.stored
    sources = {info.name: Source(info) for info in headers} if own else _by_parameter(without_int4(headers))
    config = _as_stored(config, sources)
    with torch.device("meta"):
        model = MoondreamModel(config)
    if precisions and config.text.moe is not None:
        raise SettingsError(
            f"weights are asked for with {precisions}, but this model has experts, whose matrices cannot be quantised "
            "when they are loaded: leave it out (checkpoints may have them in FP8)"
        )
    if own:
        load_stored(files, model, options)
        return model
    published = find_int4(headers, parameter_name)
    expected = model.state_dict()
    shapes = {name: tuple(value.shape) for name, value in expected.items()}
    stored = {name: sources[name].stored_shape(shape) if name in sources else shape for name, shape in shapes.items()}
    found = {name: source.info for name, source in sources.items()}
    check_int4(published, shapes, precisions)
    elsewhere = {f"{layer}.weight" for layer in published}
    check_tensors(found, {name: shape for name, shape in stored.items() if name not in elsewhere})
    if ranks is not None:
        with torch.device("meta"):
            keep_share(model, ranks)
        expected = model.state_dict()
        sources = {name: source for name, source in sources.items() if name in expected}
    layers = layers_of(model, precisions) | dict.fromkeys(published, INT4)
    store = WeightStore(model, layers, options)
    for layer, infos in published.items():
        store.put_quantised(layer, read_int4(infos, shapes[f"{layer}.weight"]))
    mapped = read_tensors(source.info for source in sources.values())
    for (name, source), (_, tensor) in zip(sources.items(), mapped, strict=True):
        value = source.value(tensor)
        if ranks is not None:
            value = _share(name, value, expected[name].shape, config.text, ranks)
        kept = expected[name].dtype if source.info.dtype == _FP8 or name.endswith(".scale") else options.dtype
        store.put(name, value, dtype=kept)
    store.fill()
    return model


def outline_model(files: Iterable[Path], config: MoondreamConfig, ranks: RankGroup | None) -> MoondreamModel:
    """Return a model, or a rank's share, without values, with experts in FP8 and layers in int4 where files have them.

    Raises as `load_model`.
    """
    headers = read_headers(files)
    published, sources = find_int4(headers, parameter_name), _by_parameter(without_int4(headers))
    with torch.device("meta"):
        model = MoondreamModel(_as_stored(config, sources))
        check_int4(published, {name: tuple(value.shape) for name, value in model.state_dict().items()}, Precisions())
        if ranks is not None:
            keep_share(model, ranks)
        replace_layers(model, dict.fromkeys(published, INT4))
    return model


def _share(name: str, value: Tensor, shape: Sequence[int], text: TextConfig, ranks: RankGroup) -> Tensor:
    """Return a rank's part of a parameter, which has this shape there."""
    if name.endswith(SUMMED_BIASES) and ranks.rank > 0:
        return torch.zeros_like(value)
    if not (name.startswith("text.") and ".attn.qkv." in name):
        return share_of(value, shape, ranks.rank)
    sizes = [heads * text.head_dim for heads in (text.n_heads, text.kv_heads, text.kv_heads)]
    parts = (part.chunk(ranks.count)[ranks.rank] for part in torch.split(value, sizes))
    return torch.cat(list(parts))


def _as_stored(config: MoondreamConfig, sources: Mapping[str, Source]) -> MoondreamConfig:
    found: dict[str, Literal["linear", "mlp"]] = {"weight": "linear", "fc1.weight": "mlp"}
    kinds = (kind for name, kind in found.items() if f"region.coord_decoder.{name}" in sources)
    decoder, norm = next(kinds, config.region.decoder), any(name.startswith("region.ln.") for name in sources)
    region, text = dataclasses.replace(config.region, decoder=decoder, norm=norm), config.text
    if text.moe is not None:
        fp8 = any(source.info.dtype == _FP8 for source in sources.values())
        text = dataclasses.replace(text, moe=dataclasses.replace(text.moe, fp8=fp8))
    return dataclasses.replace(config, region=region, text=text)


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


def _by_parameter(infos: Iterable[TensorInfo]) -> dict[str, Source]:
    sources: dict[str, Source] = {}
    for info in infos:
        name = parameter_name(info.name)
        if name.rpartition(".")[2] in IGNORED or _SKIPPED_PART in name:
            continue
        experts = info.dtype == _FP8 and len(info.shape) == 3
        if not experts and info.dtype not in FLOAT_BYTES:
            raise quantised(info)
        for part, source in _parts(name, info):
            if part in sources:
                raise given_twice(info, sources[part].info)
            sources[part] = source
    return sources


def _parts(name: str, info: TensorInfo) -> list[tuple[str, Source]]:
    """Return the parameters that a tensor holds."""
    if name.endswith(_FLAT_TAU):
        return [(name.removesuffix("wqwv") + part, Source(info, half=half)) for half, part in enumerate(("wq", "wv"))]
    return [(name, Source(info, transposed=info.name.endswith(_FLAT_FEATURES)))]
