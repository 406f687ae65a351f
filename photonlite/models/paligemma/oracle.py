"""The same checkpoint in transformers' own implementation, step by step beside this one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

from photonlite.kernels.reference.attention import ScoreRule
from photonlite.models.layers import attend
from photonlite.models.paligemma.images import MEAN, STD, cut_patches
from photonlite.models.paligemma.model import PaliGemmaModel
from photonlite.models.paligemma.vision import normalize
from photonlite.models.transformers_copy import NAME, load_copy
from photonlite.request import IMAGE, Token


class PaliGemmaOracle:
    """transformers' model and image processor; see `models.families.Oracle`."""

    name = NAME

    def __init__(self, weights: Sequence[Path], model: PaliGemmaModel) -> None:
        self._own, self._spec = model, model.crop_spec
        words = model.text.words
        self._device = words.device
        size = {"height": self._spec.side, "width": self._spec.side}
        # The processor over Pillow: the one over torchvision resizes otherwise.
        processor = SiglipImageProcessorPil(size=size, image_mean=[MEAN] * 3, image_std=[STD] * 3)
        self._processor: Any
        self._theirs, self._processor = load_copy(weights, words.dtype, self._device, lambda folder: processor)

    @torch.inference_mode()
    def preprocessing(self, image: Image.Image) -> tuple[Tensor, Tensor]:
        theirs = self._their_pixels([image])[0]  # [3, S, S]
        grid, patch = self._spec.grid, self._spec.patch
        split = theirs.view(3, grid, patch, grid, patch).permute(1, 3, 0, 2, 4)
        return normalize(self._own_patches([image])), split.reshape(grid**2, -1)

    @torch.inference_mode()
    def features(self, images: Sequence[Image.Image]) -> tuple[Tensor, Tensor]:
        patches = self._own_patches(images).to(self._device)
        own = self._own.vision.encode(patches, [(self._spec.grid,) * 2] * len(images))
        pixels = self._their_pixels(images).to(self._device, own.dtype)
        return own[0], self._theirs.model.get_image_features(pixels).pooler_output.flatten(0, 1)

    @torch.inference_mode()
    def logits(
        self, prompt: Sequence[Token], images: Sequence[Image.Image], answer: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        spread = [[self._own.config.image_id] * self._spec.positions if one == IMAGE else [one.id] for one in prompt]
        ids = [index for part in spread for index in part]
        inputs: dict[str, Any] = {"input_ids": torch.tensor([ids], device=self._device)}
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        inputs["pixel_values"] = self._their_pixels(images).to(self._device, self._own.text.words.dtype)
        # Only generation tells prompt and answer apart; it is led along the answer, and its logits are untouched.
        found = self._theirs.generate(
            **inputs, max_new_tokens=len(answer), do_sample=False, output_logits=True, return_dict_in_generate=True,
            prefix_allowed_tokens_fn=lambda _, before: [answer[len(before) - len(ids)]],
        )  # fmt: skip
        theirs = torch.cat(found.logits)
        return self._own_logits(ids, answer[: len(theirs)], images), theirs

    def _own_logits(self, ids: list[int], chosen: Sequence[int], images: Sequence[Image.Image]) -> Tensor:
        """Return the logits for each chosen token, ``[steps, vocab]``, from one pass over prompt and tokens."""
        model = self._own
        whole = torch.tensor([*ids, *chosen[:-1]], device=self._device)
        x = model.embed(whole)[None].clone()
        x[0, whole == model.config.image_id] = self.features(images)[0].to(x.dtype)
        hidden = model(x, torch.arange(len(whole), device=self._device), _PrefixAttention(len(ids)))
        return model.logits(hidden[0, len(ids) - 1 :])

    def _own_patches(self, images: Sequence[Image.Image]) -> Tensor:
        return torch.cat([torch.from_numpy(cut_patches(image, self._spec).patches) for image in images])

    def _their_pixels(self, images: Sequence[Image.Image]) -> Tensor:
        pixels: Tensor = self._processor(images=list(images), return_tensors="pt")["pixel_values"]
        return pixels


class _PrefixAttention:
    """Attention without a cache, in which so many positions see each other."""

    def __init__(self, block: int) -> None:
        self._block = block

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule | None = None) -> Tensor:
        length, block = q.shape[1], self._block
        mask = torch.ones(length, length, dtype=torch.bool, device=q.device).tril()
        if rule is not None:
            mask = rule.limit(mask)
        mask[:block, :block] = True
        return attend(q, k, v, mask, rule)


def load(weights: Sequence[Path], model: PaliGemmaModel) -> PaliGemmaOracle:
    return PaliGemmaOracle(weights, model)
