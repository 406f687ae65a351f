"""Tiny random Qwen-VL checkpoints, made by transformers, which is the oracle of these tests."""

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers

from photonlite.models.qwen.config import QwenConfig
from photonlite.models.qwen.images import ImageSettings

VOCAB = 320
IDS = {"image_token_id": 310, "video_token_id": 311, "vision_start_token_id": 308, "vision_end_token_id": 309}

_TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}
_VISION = {
    "depth": 4,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_heads": 2,
    "in_channels": 3,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "out_hidden_size": 48,
}

CASES: dict[str, dict[str, Any]] = {
    # Twice the heads of queries; windows of 2 x 2 embeddings that do not divide most images.
    "2.5": {"vision": {"fullatt_block_indexes": [1, 3], "window_size": 56}},
    # One head of keys, tied head, odd width of the MLPs, windows of 3 x 3 embeddings, no full layer at the end.
    "2.5-tied": {
        "text": {"num_key_value_heads": 1, "tie_word_embeddings": True, "intermediate_size": 77},
        "vision": {"fullatt_block_indexes": [0], "window_size": 84, "intermediate_size": 53},
        "sections": [2, 3, 1],
    },
    # As many heads of keys as of queries, and of another size.
    "2.5-wide": {
        "text": {"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 60, "num_hidden_layers": 2},
        "vision": {"fullatt_block_indexes": [], "window_size": 112, "out_hidden_size": 60, "depth": 3},
        "sections": [4, 3, 3],
    },
    "3": {"text": {"head_dim": 16}, "vision": {"deepstack_visual_indexes": [0, 1, 2], "num_position_embeddings": 25}},
    # Tied head, one head of keys, heads wider than the hidden size, two deepstack layers, a table of 48 x 48.
    "3-tied": {
        "text": {"head_dim": 32, "num_key_value_heads": 1, "tie_word_embeddings": True},
        "vision": {"deepstack_visual_indexes": [1, 3], "num_position_embeddings": 2304, "intermediate_size": 53},
        "sections": [8, 5, 3],
    },
    "3-plain": {
        "text": {"head_dim": 12, "num_key_value_heads": 4, "num_hidden_layers": 1},
        "vision": {"deepstack_visual_indexes": [2], "num_position_embeddings": 9, "depth": 3},
        "sections": [2, 2, 2],
    },
}
"""What differs from the base, by name; the name begins with the generation."""

PREPROCESSOR = {
    "2.5": {
        "patch_size": 14,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "min_pixels": 3136,
        "max_pixels": 56448,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    },
    "3": {
        "patch_size": 16,
        "merge_size": 2,
        "temporal_patch_size": 2,
        "size": {"shortest_edge": 4096, "longest_edge": 65536},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    },
}


_SPELLED = (
    "endoftext im_start im_end object_ref_start object_ref_end box_start box_end quad_start vision_start vision_end"
)
SPECIAL = {f"<|{name}|>": 300 + place for place, name in enumerate([*_SPELLED.split(), "image_pad", "video_pad"])}
THINK = {"<think>": 312, "</think>": 313}  # added tokens that are not special, as in public tokenizers
_MERGED = ("user", "assistant", "system", "bbox", "label", "json", "[\n", "[]", '":', ' "', "\n\n", "mug", "},", ' ["')

_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How public tokenizers split text before merging: digits stand alone."""


def tokenizer() -> tokenizers.Tokenizer:
    """Return a byte-level tokenizer with the pre-tokenization and the special tokens of public ones."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {letter: index for index, letter in enumerate(letters)}
    merges: list[tuple[str, str]] = []
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for text in _MERGED:
        spelled = byte_level.pre_tokenize_str(text)[0][0]
        for end in range(2, len(spelled) + 1):
            if spelled[:end] not in vocab:
                merges.append((spelled[: end - 1], spelled[end - 1]))
                vocab[spelled[:end]] = len(vocab)
    vocab |= {f"unused {index}": index for index in range(len(vocab), min(SPECIAL.values()))}
    made = tokenizers.Tokenizer(models.BPE(vocab, merges))
    made.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(tokenizers.Regex(_PATTERN), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    made.decoder = decoders.ByteLevel()
    raw = json.loads(made.to_str())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    named = [(text, index, True) for text, index in SPECIAL.items()] + [(text, i, False) for text, i in THINK.items()]
    raw["added_tokens"] = [{"id": i, "content": text, "special": special, **flags} for text, i, special in named]
    return tokenizers.Tokenizer.from_str(json.dumps(raw))


def generation(case: str) -> str:
    return case.partition("-")[0]


def reference_model(case: str, seed: int = 0) -> Any:
    """Return a random model of transformers in float32; norms and biases are random too."""
    import transformers  # takes seconds, which a collection need not wait for

    changes, newer = CASES[case], generation(case) == "3"
    text = _TEXT | changes.get("text", {})
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 10_000.0}
    rope["mrope_section"] = changes.get("sections", [3, 3, 2] if newer else [2, 2, 2])
    if newer:
        rope["mrope_interleaved"] = True
    vision = _VISION | {"patch_size": 16 if newer else 14} | changes.get("vision", {})
    tied = {"tie_word_embeddings": text.pop("tie_word_embeddings", False)}
    parts = {"text_config": text | {"rope_parameters": rope}, "vision_config": vision}
    torch.manual_seed(seed)
    if newer:
        config = transformers.Qwen3VLConfig(**parts, **IDS, **tied)
        model: Any = transformers.Qwen3VLForConditionalGeneration(config)
    else:
        config = transformers.Qwen2_5_VLConfig(**parts, **IDS, **tied)
        model = transformers.Qwen2_5_VLForConditionalGeneration(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.ndim == 1:  # a norm or a bias
                value.copy_(torch.randn_like(value) * 0.3 + ("norm" in name or "ln_q" in name))
            else:
                value.copy_(torch.randn_like(value) * (value[0].numel() ** -0.5 if value.ndim > 1 else 1))
    return model.eval()


def save(model: Any, folder: Path, case: str) -> Path:
    """Write config.json, weights and preprocessor_config.json as transformers does, and a tokenizer."""
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR[generation(case)]))
    tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def settings(case: str, config: QwenConfig) -> ImageSettings:
    return ImageSettings.from_dict(PREPROCESSOR[generation(case)], config.vision)
