"""Images in the image encoder: features until the last crop is encoded, then embeddings."""

from collections.abc import Sequence

import torch
from torch import Tensor

from photonlite.batch import CropGroup, EncodeJob
from photonlite.models.base import CropEncoder


class ImageEncoder:
    """Encodes crops of several images at once and keeps features and embeddings by the job's number."""

    def __init__(self, encoder: CropEncoder) -> None:
        self._encoder = encoder
        self._features: dict[int, list[Tensor]] = {}
        self._embeddings: dict[int, Tensor] = {}

    def encode(self, pixels: Tensor, groups: Sequence[CropGroup]) -> None:
        """Encode the crops of the groups, which lie one after the other in `pixels`."""
        features = self._encoder.encode(pixels)
        for group, found in zip(groups, torch.split(features, [group.count for group in groups]), strict=True):
            job = group.job
            if job.failed:
                self.forget(job)
                continue
            parts = self._features.setdefault(job.number, [])
            parts.append(found)
            if sum(map(len, parts)) == job.total:
                self._embeddings[job.number] = self._encoder.project(torch.cat(parts), job.crops.tiling)
                del self._features[job.number]

    def embeddings(self, job: int) -> Tensor | None:
        """Return an image's embeddings ``[prefix_length - 1, dim]``; None where some of its crops were not encoded."""
        return self._embeddings.get(job)

    def forget(self, job: EncodeJob) -> None:
        """Drop a job's features and embeddings."""
        self._features.pop(job.number, None)
        self._embeddings.pop(job.number, None)
