"""The same checkpoint in transformers' own implementation, step by step beside this one."""

from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from photonlite.models.layers import MaskedAttention
from photonlite.models.qwen.images import cut_patches
from photonlite.models.qwen.model import QwenModel
from photonlite.models.qwen.vision import normalize_patches
from photonlite.models.transformers_copy import NAME, load_copy
from photonlite.request import IMAGE, Token


class QwenOracle:
    """transformers' model and image processor of the files that a model was loaded from; see `families.Oracle`."""

    name = NAME

    def __init__(self, weights: Sequence[Path], model: QwenModel) -> None:
        self._own = model
        words = model.text.words
        self._device = words.device
        # The processor over Pillow: the one over torchvision resizes otherwise.
        read = Qwen2VLImageProcessorPil.from_pretrained
        self._theirs, self._processor = load_copy(weights, words.dtype, self._device, read)

    @torch.inference_mode()
    def preprocessing(self, image: Image.Image) -> tuple[Tensor, Tensor]:
        return self._own_pixels([image])[0], self._their_pixels([image])["pixel_values"]

    @torch.inference_mode()
    def features(self, images: Sequence[Image.Image]) -> tuple[Tensor, Tensor]:
        patches = [cut_patches(image, self._own.crop_spec) for image in images]
        pixels = torch.cat([torch.from_numpy(one.patches) for one in patches]).to(self._device)
        own = self._own.crop_encoder().encode(pixels, [one.grid for one in patches])
        given = self._their_pixels(images)
        numbers = given["pixel_values"].to(self._device, own.dtype)
        found = self._theirs.model.visual(numbers, grid_thw=given["image_grid_thw"].to(self._device))
        theirs = torch.stack([found.pooler_output, *(getattr(found, "deepstack_features", None) or ())])
        return own, theirs

    @torch.inference_mode()
    def logits(
        self, prompt: Sequence[Token], images: Sequence[Image.Image], answer: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        image_id, ids = self._own.config.image_id, self._spread(prompt, images)
        # Behind an id that stands for an image both would look for that image.
        before = list(takewhile(lambda token: token != image_id, answer[:-1]))
        whole = torch.tensor([[*ids, *before]], device=self._device)
        inputs: dict[str, Any] = {"input_ids": whole, "mm_token_type_ids": (whole == image_id).int()}
        if images:
            given = self._their_pixels(images)
            inputs["pixel_values"] = given["pixel_values"].to(self._device, self._own.text.words.dtype)
            inputs["image_grid_thw"] = given["image_grid_thw"].to(self._device)
        found = self._theirs(**inputs, use_cache=False, logits_to_keep=len(before) + 1)
        return self._own_logits(ids, before, images), found.logits[0]

    def _own_logits(self, ids: list[int], before: list[int], images: Sequence[Image.Image]) -> Tensor:
        """Return the logits behind the prompt and behind each token of an answer, ``[steps, vocab]``, from one pass."""
        model, image_id = self._own, self._own.config.image_id
        whole = torch.tensor([*ids, *before], device=self._device)
        x, deepstack = model.embed(whole)[None].clone(), None
        grids = [model.crop_spec.positions_of(image.size) for image in images]
        if images:
            merged, *others = self.features(images)[0]
            places = whole == image_id
            x[0, places] = merged.to(x.dtype)
            deepstack = x.new_zeros(len(others), *x.shape)
            for target, features in zip(deepstack, others, strict=True):
                target[0, places] = features.to(x.dtype)
        turns = model.turns(self._parts(ids, grids))
        behind = torch.arange(len(ids), len(whole)) + turns.shift
        axes = torch.cat([torch.from_numpy(turns.axes.copy()), behind[:, None].expand(-1, 3)]).T.to(self._device)
        causal = torch.ones(len(whole), len(whole), dtype=torch.bool, device=self._device).tril()
        hidden = model(x, axes, MaskedAttention(causal), deepstack)
        return model.logits(hidden[0, len(ids) - 1 :])

    def _parts(self, ids: list[int], grids: list[tuple[int, int]]) -> list[int | tuple[int, int]]:
        """Return a prompt as `Model.turns` takes it."""
        parts: list[int | tuple[int, int]] = []
        waiting, place = iter(grids), 0
        while place < len(ids):
            grid = next(waiting) if ids[place] == self._own.config.image_id else None
            parts.append(grid or 1)
            place += grid[0] * grid[1] if grid else 1
        return parts

    def _spread(self, prompt: Sequence[Token], images: Sequence[Image.Image]) -> list[int]:
        """Return the ids of a prompt, with one for each position of an image."""
        grids = [self._own.crop_spec.positions_of(image.size) for image in images]
        counts = iter([rows * columns for rows, columns in grids])
        return [
            index
            for token in prompt
            for index in ([self._own.config.image_id] * next(counts) if token == IMAGE else [token.id])
        ]

    def _own_pixels(self, images: Sequence[Image.Image]) -> list[Tensor]:
        settings, frames = self._own.crop_spec, self._own.config.vision.frames
        cut = [torch.from_numpy(cut_patches(image, settings).patches) for image in images]
        return [normalize_patches(patches, settings, frames) for patches in cut]

    def _their_pixels(self, images: Sequence[Image.Image]) -> Any:
        return self._processor(images=list(images), return_tensors="pt")


def load(weights: Sequence[Path], model: QwenModel) -> QwenOracle:
    return QwenOracle(weights, model)
