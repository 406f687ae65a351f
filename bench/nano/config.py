"""The shape of the nano checkpoint: its config.json."""

import math
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn

from bench.nano.questions import ANSWER, BOS, COORD, SIZE, templates
from photonlite.models.moondream.model import MoondreamModel


def config_dict(tokenizer: Tokenizer) -> dict[str, Any]:
    """Give the content of config.json: about 8 million parameters, more than half of them where the pixels are."""
    dim = 224
    return {
        "model_type": "photonlite_nano",
        "text": {
            "dim": dim,
            "ff_dim": 672,
            "n_layers": 4,
            "n_heads": 7,
            "vocab_size": tokenizer.get_vocab_size(),
            "max_context": 1024,
        },
        "vision": {
            "enc_dim": 256,
            "enc_patch_size": 16,
            "enc_n_layers": 6,
            "enc_ff_dim": 768,
            "enc_n_heads": 8,
            "proj_out_dim": dim,
            "proj_inner_dim": 448,
            "crop_size": 384,
            "max_crops": 1,
            "overlap_margin": 2,
        },
        "region": {
            "dim": dim,
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
            "thinking_id": 4,
            "coord_id": COORD,
            "size_id": SIZE,
            "start_ground_points_id": 7,
            "end_ground_id": 9,
            "reasoning": False,
            "spatial_refs": False,
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
