"""Tiny random PaliGemma 2 checkpoints, made by transformers, which is the oracle of these tests."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from PIL import Image
from tokenizers import decoders, models, normalizers, pre_tokenizers

LOCATIONS, CODES = 1024, 128
WORDS = 400  # ids below are those of text
FIRST_LOCATION, FIRST_CODE = WORDS, WORDS + LOCATIONS
IMAGE_ID = FIRST_CODE + CODES
VOCAB = IMAGE_ID + 8
END, BOS, NEW_LINE = 1, 2, 108

_TEXT = {
    "model_type": "gemma2",
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "query_pre_attn_scalar": 10,
    "max_position_embeddings": 512,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
    "sliding_window": 8,
}
_VISION = {
    "model_type": "siglip_vision_model",
    "hidden_size": 16,
    "intermediate_size": 22,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 14,
    "image_size": 42,
    "vision_use_head": False,
}

CASES: dict[str, dict[str, Any]] = {
    # 9 positions of an image: the window is shorter than the prompt, and than most answers.
    "capped": {},
    # No caps, one head of keys, odd width of the MLP, heads wider than the hidden size, a window longer than the prompt
    # and shorter than 20 tokens more.
    "free": {
        "text": {"attn_logit_softcapping": None, "final_logit_softcapping": None, "num_key_value_heads": 1}
        | {"intermediate_size": 37, "head_dim": 16, "sliding_window": 30, "num_hidden_layers": 3},
        "vision": {"image_size": 56, "num_hidden_layers": 3},
    },
    # As many heads of keys as of queries, only scores are capped, a window of 3, two full layers in a row.
    "narrow": {
        "text": {"final_logit_softcapping": None, "num_attention_heads": 3, "num_key_value_heads": 3}
        | {"hidden_size": 30, "sliding_window": 3, "num_hidden_layers": 3}
        | {"layer_types": ["full_attention", "full_attention", "sliding_attention"]},
        "vision": {"image_size": 28, "patch_size": 7, "num_attention_heads": 4},
    },
}
"""What differs from the base, by name."""

_MERGED = ("answer", "caption", "describe", "detect", "segment", "▁en", "▁mug", "▁;", "ocr", "▁What", "▁is")


def reference_model(case: str, seed: int = 0) -> Any:
    """Return a random model of transformers in float32; norms and biases are random too."""
    import transformers  # takes seconds, which a collection need not wait for

    changes = CASES[case]
    text, vision = _TEXT | changes.get("text", {}), _VISION | changes.get("vision", {})
    sizes = dict.fromkeys(("hidden_size", "projection_dim"), text["hidden_size"])
    torch.manual_seed(seed)
    more: dict[str, Any] = {"image_token_index": IMAGE_ID, "vocab_size": VOCAB, **sizes}
    config = transformers.PaliGemmaConfig(text_config=text, vision_config=vision, **more)
    model = transformers.PaliGemmaForConditionalGeneration(config)
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim == 1:  # a norm or a bias
                value.copy_(torch.randn_like(value) * 0.3)
            else:
                value.copy_(torch.randn_like(value) * value[0].numel() ** -0.5)
        model.get_input_embeddings().weight.mul_(0.3)  # or it repeats the newest word
    return model.eval()


def tokenizer() -> tokenizers.Tokenizer:
    """Return a tokenizer as Gemma's is built: pairs of characters, bytes where there is none, spaces as "▁"."""
    vocab = {"<pad>": 0, "<eos>": END, "<bos>": BOS, "<unk>": 3}
    vocab |= {f"<0x{byte:02X}>": 110 + byte for byte in range(256)}
    spare = iter([index for index in range(4, 110) if index != NEW_LINE] + list(range(366, WORDS)))
    letters = ("\n", "▁", *map(chr, range(0x21, 0x7F)))
    vocab |= {letter: NEW_LINE if letter == "\n" else next(spare) for letter in letters}
    merges: list[tuple[str, str]] = []
    for text in _MERGED:
        for end in range(2, len(text) + 1):
            if text[:end] not in vocab and (index := next(spare, None)) is not None:
                merges.append((text[: end - 1], text[end - 1]))
                vocab[text[:end]] = index
    vocab |= {f"<unused{index}>": index for index in spare}
    made = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Replace(" ", "▁")
    made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    raw = json.loads(made.to_str())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    named = [("<pad>", 0, True), ("<eos>", END, True), ("<bos>", BOS, True), ("<unk>", 3, True)]
    named += [(f"<loc{number:04}>", FIRST_LOCATION + number, False) for number in range(LOCATIONS)]
    named += [(f"<seg{number:03}>", FIRST_CODE + number, False) for number in range(CODES)]
    named += [("<image>", IMAGE_ID, True)]
    raw["added_tokens"] = [{"id": i, "content": text, "special": special, **flags} for text, i, special in named]
    raw["model"]["vocab"] |= {text: index for text, index, _ in named}
    return tokenizers.Tokenizer.from_str(json.dumps(raw))


def save(model: Any, folder: Path) -> Path:
    """Write config.json, weights and preprocessor_config.json as released files have them, and a tokenizer."""
    model.save_pretrained(folder)
    side = model.config.vision_config.image_size
    processor: dict[str, Any] = {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": 3}
    processor |= {"size": {"height": side, "width": side}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor | {"rescale_factor": 1 / 255}))
    tokenizer().save(str(folder / "tokenizer.json"))
    return folder


def noise(seed: int, size: tuple[int, int]) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
