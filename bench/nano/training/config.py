"""The shape of the nano checkpoint: its config.json."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from bench.nano.questions.layout import ANSWER, BOS, COORD, GROUND, GROUND_END, SIZE, THINK
from bench.nano.questions.maker import templates
from photonlite.models.moondream.model import MoondreamModel


@dataclass(frozen=True)
class Shape:
    """What runs may vary; the defaults are the shipped checkpoint's."""

    crop: int = 416  # Side of a crop in pixels
    max_crops: int = 1  # Local crops at most; 1 shows every image as a single crop
    patch: int = 16  # Side of a patch in pixels
    vision_dim: int = 256  # Width of the vision encoder
    vision_ff: int = 704  # Hidden width of its feed-forward layers
    vision_layers: int = 6  # Its depth
    text_dim: int = 256  # Width of the text decoder
    text_ff: int = 896  # Hidden width of its feed-forward layers
    text_layers: int = 4  # Its depth
    head_dim: int = 64  # Width of an attention head, in both


def config_dict(tokenizer: Tokenizer, shape: Shape | None = None) -> dict[str, Any]:
    """Return the content of config.json: about 9 million parameters, about half of them where the pixels are."""
    shape = shape or Shape()
    return {
        "model_type": "photonlite_nano",
        "text": {
            "dim": shape.text_dim,
            "ff_dim": shape.text_ff,
            "n_layers": shape.text_layers,
            "n_heads": shape.text_dim // shape.head_dim,
            "vocab_size": tokenizer.get_vocab_size(),
            "max_context": 1024,
        },
        "vision": {
            "enc_dim": shape.vision_dim,
            "enc_patch_size": shape.patch,
            "enc_n_layers": shape.vision_layers,
            "enc_ff_dim": shape.vision_ff,
            "enc_n_heads": shape.vision_dim // shape.head_dim,
            "proj_out_dim": shape.text_dim,
            "proj_inner_dim": 384,
            "crop_size": shape.crop,
            "max_crops": shape.max_crops,
            "overlap_margin": 2,
        },
        "region": {
            "dim": shape.text_dim,
            "coord_feat_dim": 256,
            "coord_out_dim": 512,
            "size_feat_dim": 256,
            "size_out_dim": 1024,
            "decoder": "linear",
            "norm": True,
        },
        "tokenizer": {
            "bos_id": BOS,
            "eos_id": BOS,
            "answer_id": ANSWER,
            "thinking_id": THINK,
            "coord_id": COORD,
            "size_id": SIZE,
            "start_ground_points_id": GROUND,
            "end_ground_id": GROUND_END,
            "reasoning": True,
            "spatial_refs": True,
            "never_in_text": ["{", "}", "[", "]", '"', "_", "true", "false"],  # that is JSON's, and has a grammar
            "templates": templates(tokenizer),
        },
    }


def initialise(model: MoondreamModel) -> None:
    """Draw starting weights: truncated normal 0.02, residual branches damped by depth, Fourier frequencies to 2^6."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.trunc_normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
    for blocks in (model.vision.blocks, model.text.blocks):
        for name, parameter in blocks.named_parameters():
            if name.endswith(("proj.weight", "fc2.weight")):
                parameter.data /= math.sqrt(2 * len(blocks))
    nn.init.trunc_normal_(model.text.wte, std=0.02)
    nn.init.trunc_normal_(model.vision.pos_emb, std=0.02)
    for features in (model.region.coord_features, model.region.size_features):
        octaves = torch.linspace(-1, 6, features.shape[1])
        sign = torch.where(torch.rand_like(features) < 0.5, -1.0, 1.0)
        features.data.copy_(sign * torch.exp2(octaves))
