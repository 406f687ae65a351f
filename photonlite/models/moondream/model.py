"""The whole model: vision, text and region parts under the names of the public checkpoints."""

from torch import Tensor, nn

from photonlite.images.crops import CropSpec
from photonlite.models.base import ModelShape
from photonlite.models.layers import Attention
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.region import SIZE_OCTAVES, RegionHeads, coord_from_bin, size_from_bin
from photonlite.models.moondream.text import TextDecoder
from photonlite.models.moondream.vision import VisionEncoder


class MoondreamModel(nn.Module):
    """Modules `vision`, `text` and `region`; training, serving and the parity tests all run this code.

    Parameters are created without values: load a checkpoint or initialise them. The methods are those of
    :class:`photonlite.models.base.Model`, by which a runner knows it.
    """

    size_octaves: float = SIZE_OCTAVES

    def __init__(self, config: MoondreamConfig) -> None:
        super().__init__()
        self.config = config
        self.vision = VisionEncoder(config.vision)
        self.text = TextDecoder(config.text)
        self.region = RegionHeads(config.region)

    @property
    def shape(self) -> ModelShape:
        """Sizes of cache and context."""
        text = self.config.text
        return ModelShape(
            layers=text.n_layers,
            kv_heads=text.kv_heads,
            head_dim=text.head_dim,
            max_context=text.max_context,
            prefix_length=self.config.prefix_length,
            bos_id=self.config.tokenizer.bos_id,
            dim=text.dim,
            vocab_size=text.vocab_size,
        )

    @property
    def crop_spec(self) -> CropSpec:
        """How a picture is cut for :meth:`encode_image`."""
        vision = self.config.vision
        return CropSpec(vision.crop_size, vision.enc_patch_size, vision.overlap_margin, vision.max_crops)

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """Run the text decoder over embeddings ``[B, T, dim]``; see :meth:`TextDecoder.forward`."""
        return self.text(x, positions, attention)

    def encode_image(self, pixels: Tensor, tiling: tuple[int, int]) -> Tensor:
        """Map the crops of one picture, uint8 ``[n, C, C, 3]``, to embeddings ``[P, dim]``."""
        return self.vision.project(self.vision.encode(pixels), tiling)

    def embed(self, ids: Tensor) -> Tensor:
        """Embed ids ``[...]`` as ``[..., dim]``."""
        return self.text.embed(ids)

    def embed_coordinates(self, values: Tensor) -> Tensor:
        """Embed coordinates ``[N]`` as ``[N, dim]``."""
        return self.region.encode_coord(values)

    def embed_sizes(self, values: Tensor) -> Tensor:
        """Embed widths and heights ``[N, 2]`` as ``[N, dim]``."""
        return self.region.encode_size(values)

    def logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to logits over ids ``[..., vocab]``."""
        return self.text.logits(hidden)

    def coordinate_logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to logits over coordinate bins ``[..., bins]``."""
        return self.region.coord_logits(hidden)

    def size_logits(self, hidden: Tensor) -> Tensor:
        """Map raw hidden states ``[..., dim]`` to logits ``[..., 2, bins]``: width first, then height."""
        return self.region.size_logits(hidden)

    def coordinate_of(self, index: Tensor, bins: int) -> Tensor:
        """Give the coordinate of each bin; see :func:`coord_from_bin`."""
        return coord_from_bin(index, bins)

    def size_of(self, index: Tensor, bins: int) -> Tensor:
        """Give the width or height of each bin; see :func:`size_from_bin`."""
        return size_from_bin(index, bins)
