"""PaliGemma 2 models of published shapes with random weights, behind the public API."""

import torch

from bench.bubble.subjects import fill_randomly
from bench.gpu.tokens import byte_tokenizer
from photonlite.models.checkpoint import LoadedModel
from photonlite.models.paligemma.config import PaliGemmaConfig
from photonlite.models.paligemma.model import LOCATIONS, PaliGemmaModel
from photonlite.models.paligemma.prompts import PaliGemmaPrompts

_CODES = 128


def random_paligemma(config: PaliGemmaConfig, device: torch.device, dtype: torch.dtype) -> LoadedModel:
    """Make a model with random weights and a tokenizer of single letters that has its special tokens."""
    first = config.image_id - _CODES - LOCATIONS
    special = {f"<loc{number:04}>": first + number for number in range(LOCATIONS)}
    special |= {f"<seg{number:03}>": first + LOCATIONS + number for number in range(_CODES)}
    special |= {"<image>": config.image_id, "<bos>": config.bos_id, "<eos>": config.end_id}
    prompts = PaliGemmaPrompts(config, byte_tokenizer(special, config.text.vocab_size), None)
    with torch.device("meta"):
        empty = PaliGemmaModel(config, prompts.first_location).to(dtype)
    model = empty.to_empty(device=device).requires_grad_(False).eval()
    fill_randomly(model, 0)
    return LoadedModel("random weights", model, prompts)
