"""Tiny random checkpoints of Moondream 3 in both public layouts, written from the facts about the released ones."""

import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.models.checkpoints import GOLDEN
from tests.tiny import TEMPLATES

VISUAL = "vision_encoder.encoder.model.visual."


@dataclass(frozen=True)
class Sizes:
    """A decoder with experts from block `dense` on; the picture is 5 x 5 patches."""

    dim: int = 24
    heads: int = 3
    layers: int = 3
    ff: int = 20
    experts: int = 8
    chosen: int = 2
    inner: int = 10
    dense: int = 1
    bins: int = 40
    size_bins: int = 30
    norm: bool = True
    vocab: int = 272
    context: int = 160
    switches: dict[str, dict[str, Any]] = field(default_factory=dict)  # of config.json, by section

    def config(self) -> dict[str, Any]:
        moe = {"num_experts": self.experts, "experts_per_token": self.chosen, "expert_inner_dim": self.inner}
        raw: dict[str, dict[str, Any]] = {
            "text": {"dim": self.dim, "ff_dim": self.ff, "n_layers": self.layers, "n_heads": self.heads}
            | {"n_kv_heads": self.heads, "vocab_size": self.vocab, "max_context": self.context}
            | {"moe": moe | {"start_layer": self.dense}},
            "vision": {"enc_dim": 12, "enc_patch_size": 4, "enc_n_layers": 2, "enc_ff_dim": 16, "enc_n_heads": 2}
            | {"proj_out_dim": self.dim, "proj_inner_dim": 16, "crop_size": 20, "max_crops": 6, "overlap_margin": 1},
            "region": {"dim": self.dim, "coord_feat_dim": 10, "coord_out_dim": self.bins, "size_feat_dim": 6}
            | {"size_out_dim": 2 * self.size_bins},
            "tokenizer": {"templates": TEMPLATES},
        }
        return {"model_type": "moondream3"} | {key: raw[key] | self.switches.get(key, {}) for key in raw}


def random_weights(sizes: Sizes, seed: int = 0) -> dict[str, Tensor]:
    """Draw the tensors of the Hub layout: large enough that choices differ from place to place."""
    generator = torch.Generator().manual_seed(seed)
    state: dict[str, Tensor] = {}

    def draw(name: str, *shape: int, scale: float | None = None) -> None:
        scale = shape[-1] ** -0.5 if scale is None else scale
        state[f"model.{name}"] = torch.randn(shape, generator=generator) * scale

    def linear(name: str, dim_in: int, dim_out: int) -> None:
        draw(f"{name}.weight", dim_out, dim_in)
        draw(f"{name}.bias", dim_out, scale=0.5)

    def norm(name: str, dim: int) -> None:
        state[f"model.{name}.weight"] = torch.rand(dim, generator=generator) + 0.5
        draw(f"{name}.bias", dim, scale=0.3)

    dim = sizes.dim
    draw("text.wte", sizes.vocab, dim, scale=1.0)
    for layer in range(sizes.layers):
        block = f"text.blocks.{layer}"
        norm(f"{block}.ln", dim)
        linear(f"{block}.attn.qkv", dim, 3 * dim)
        linear(f"{block}.attn.proj", dim, dim)
        draw(f"{block}.attn.tau.wq", sizes.heads, 3 * dim)
        draw(f"{block}.attn.tau.wv", sizes.heads, 3 * dim)
        draw(f"{block}.attn.tau.alpha", sizes.heads, scale=0.5)
        if layer < sizes.dense:
            linear(f"{block}.mlp.fc1", dim, sizes.ff)
            linear(f"{block}.mlp.fc2", sizes.ff, dim)
        else:
            linear(f"{block}.mlp.router", dim, sizes.experts)
            draw(f"{block}.mlp.fc1.weight", sizes.experts, 2 * sizes.inner, dim)
            draw(f"{block}.mlp.fc2.weight", sizes.experts, dim, sizes.inner)
    norm("text.post_ln", dim)
    linear("text.lm_head", dim, sizes.vocab)

    linear("vision.patch_emb", 3 * 4 * 4, 12)
    draw("vision.pos_emb", 1, 25, 12)
    for layer in range(2):
        block = f"vision.blocks.{layer}"
        norm(f"{block}.ln1", 12)
        norm(f"{block}.ln2", 12)
        linear(f"{block}.attn.qkv", 12, 36)
        linear(f"{block}.attn.proj", 12, 12)
        linear(f"{block}.mlp.fc1", 12, 16)
        linear(f"{block}.mlp.fc2", 16, 12)
    norm("vision.post_ln", 12)
    linear("vision.proj_mlp.fc1", 24, 16)
    linear("vision.proj_mlp.fc2", 16, dim)

    draw("region.coord_features", 1, 5, scale=1.0)
    draw("region.size_features", 2, 3, scale=1.0)
    linear("region.coord_encoder", 10, dim)
    linear("region.size_encoder", 6, dim)
    linear("region.coord_decoder", dim, sizes.bins)
    linear("region.size_decoder", dim, 2 * sizes.size_bins)
    if sizes.norm:
        norm("region.ln", dim)
    return state


_MD3 = [
    (r"vision\.patch_emb", f"{VISUAL}patch_embed.linear"),
    (r"vision\.pos_emb", f"{VISUAL}pos_embed"),
    (r"vision\.blocks\.(\d+)\.ln(\d)", rf"{VISUAL}blocks.\1.norm\2"),
    (r"vision\.blocks", f"{VISUAL}blocks"),
    (r"vision\.post_ln", f"{VISUAL}norm"),
    (r"vision\.proj_mlp", "vision_encoder.projection.mlp"),
    (r"text\.wte", "text_model.transformer.embd.wte.weight"),
    (r"text\.post_ln", "text_model.lm_head.ln"),
    (r"text\.lm_head", "text_model.lm_head.linear"),
    (r"text\.blocks\.(\d+)\.attn\.qkv", r"text_model.transformer.h.\1.mixer.Wqkv"),
    (r"text\.blocks\.(\d+)\.attn\.proj", r"text_model.transformer.h.\1.mixer.out_proj"),
    (r"text\.blocks\.(\d+)\.attn\.tau\.", r"text_model.transformer.h.\1.tau_"),
    (r"text\.blocks\.(\d+)\.mlp\.router", r"text_model.transformer.h.\1.gate"),
    (r"text\.blocks", "text_model.transformer.h"),
    (r"region\.(coord|size)_features", r"region_model.\1_features.weight"),
    (r"region\.(coord|size)_decoder", r"region_model.\1_head"),
    (r"region", "region_model"),
]


def md3_layout(state: dict[str, Tensor], *, fused_tau: bool = False, compiled: bool = False) -> dict[str, Tensor]:
    """Rename tensors of the Hub layout to the "md3" one, as compiled modules name them if told so."""
    renamed: dict[str, Tensor] = {}
    for key, value in state.items():
        name = key.removeprefix("model.")
        pattern, new = next((pattern, new) for pattern, new in _MD3 if re.match(pattern, name))
        name = re.sub(f"^{pattern}", new, name).replace("region_model.coord_", "region_model.coordinate_")
        if value.ndim == 3 and ".mlp." in name:
            name = name.replace(".fc1.", ".experts.").replace(".fc2.", ".output_experts.")
        name = name.replace(".h.", "._orig_mod.h.") if compiled else name
        renamed[name] = value.T.contiguous() if name.endswith("_features.weight") else value
    if fused_tau:
        for name in [name for name in renamed if name.endswith("tau_wq")]:
            values = name.removesuffix("wq") + "wv"
            renamed[f"{name}wv"] = torch.cat((renamed.pop(name), renamed.pop(values)))
    return renamed


def in_fp8(state: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Quantise the experts of an "md3" checkpoint; return it, and the same with experts in float32 again."""
    stored, wide = dict(state), dict(state)
    for name in [name for name in state if "experts.weight" in name]:
        weight = state[name]
        scale = weight.abs().amax(dim=-1) / 448
        stored[name] = (weight / scale[..., None]).to(torch.float8_e4m3fn)
        wide[name] = stored[name].float() * scale[..., None]
        part = "down_scale" if "output_experts" in name else "up_scale"
        stored[f"{name.partition('.mlp.')[0]}.moe_quant.{part}"] = scale
    return stored, wide


def write_folder(folder: Path, sizes: Sizes, state: dict[str, Tensor]) -> Path:
    """Write config.json, tokenizer and weights."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(sizes.config()))
    shutil.copy(GOLDEN / "tokenizer.json", folder)
    save_file({name: value.contiguous() for name, value in state.items()}, folder / "model.safetensors")
    return folder
