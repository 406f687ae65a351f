"""Random models of odd shapes, and the golden case, for tests of everything above the network."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch

from photonlite.models.checkpoint import LoadedModel
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.moondream.prompts import MoondreamPrompts
from photonlite.models.tokenizer import Tokenizer

GOLDEN = Path(__file__).parent / "golden" / "moondream-tiny"
EXPECTED: dict[str, Any] = json.loads((GOLDEN / "expected.json").read_text())
CPU = torch.device("cpu")

TEMPLATES = {
    "caption": {"short": [1, 92, 3], "normal": [1, 87, 3]},
    "query": {"prefix": [1, 90, 2], "suffix": [3], "reasoning_suffix": [4]},
    "detect": {"prefix": [1, 77, 2], "suffix": [3]},
    "point": {"prefix": [1, 89, 2], "suffix": [3]},
    "segment": {"prefix": [1, 92, 2], "suffix": [3]},
}

EXPERTS: dict[str, Any] = {
    "n_kv_heads": 3,
    "moe": {"num_experts": 8, "experts_per_token": 3, "expert_inner_dim": 10, "start_layer": 1},
}
"""What makes the text section of `tiny_config("moondream3")` whole: temperatures need equal numbers of heads."""


def tiny_config(kind: str = "photonlite_nano", **sections: dict[str, Any]) -> MoondreamConfig:
    """A grid of 5 x 5 patches, 3 heads of 8 that share 1 key/value head, other numbers of bins for each value."""
    raw: dict[str, Any] = {
        "model_type": kind,
        "text": {"dim": 24, "ff_dim": 32, "n_layers": 2, "n_heads": 3, "n_kv_heads": 1, "vocab_size": 272}
        | {"max_context": 120},
        "vision": {"enc_dim": 12, "enc_patch_size": 4, "enc_n_layers": 2, "enc_ff_dim": 16, "enc_n_heads": 2}
        | {"proj_out_dim": 24, "proj_inner_dim": 16, "crop_size": 20, "max_crops": 6, "overlap_margin": 1},
        "region": {"dim": 24, "coord_feat_dim": 10, "coord_out_dim": 40, "size_feat_dim": 6, "size_out_dim": 60}
        | {"inner_dim": 16},
        "tokenizer": {"templates": TEMPLATES},
    }
    for name, section in sections.items():
        raw[name] = raw[name] | section
    return MoondreamConfig.from_dict(raw)


def tiny_model(config: MoondreamConfig, seed: int = 0) -> MoondreamModel:
    """Weights large enough that greedy choices differ from place to place."""
    model = MoondreamModel(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = 1.0 if name.endswith(("wte", "features")) or "ln" in name else parameter.shape[-1] ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * scale)
    return model.requires_grad_(False).eval()


@cache
def golden_tokenizer() -> Tokenizer:
    return Tokenizer(GOLDEN / "tokenizer.json", vocab_size=272, controls_to=21)


def tiny_prompts(config: MoondreamConfig) -> MoondreamPrompts:
    return MoondreamPrompts(config, golden_tokenizer())


def tiny_loaded(config: MoondreamConfig, seed: int = 0) -> LoadedModel:
    return LoadedModel("tiny", tiny_model(config, seed), tiny_prompts(config))
