"""Models that are another model but for a few methods."""

from collections.abc import Sequence

from torch import Tensor

from photonlite.images.crops import CropSpec
from photonlite.models.base import CropEncoder, Heads, InputWeights, Model, ModelShape, PromptDecoder, StepDecoder
from photonlite.models.layers import Attention


class ModelView:
    """Passes everything on to a model; see `models.base.Model`.

    Args:
        model: Does it.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    @property
    def shape(self) -> ModelShape:
        """The model's."""
        return self._model.shape

    @property
    def crop_spec(self) -> CropSpec:
        """The model's."""
        return self._model.crop_spec

    @property
    def vision(self) -> CropEncoder:
        """The model's."""
        return self._model.vision

    @property
    def heads(self) -> Heads | None:
        """The model's."""
        return self._model.heads

    @property
    def input_weights(self) -> InputWeights | None:
        """The model's."""
        return self._model.input_weights

    @property
    def size_octaves(self) -> float:
        """The model's."""
        return self._model.size_octaves

    def kv_statistics(self) -> Sequence[tuple[float, float]]:
        """The model's."""
        return self._model.kv_statistics()

    def crop_encoder(self, *, fp8: bool = False) -> CropEncoder:
        """The model's."""
        return self._model.crop_encoder(fp8=fp8)

    def prompt_decoder(self, *, fp8: bool = False) -> PromptDecoder | None:
        """The model's."""
        return self._model.prompt_decoder(fp8=fp8)

    def step_decoder(self) -> StepDecoder | None:
        """The model's."""
        return self._model.step_decoder()

    def forward(self, x: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        """As the model does."""
        return self._model.forward(x, positions, attention)

    def encode_image(self, pixels: Tensor, tiling: tuple[int, int]) -> Tensor:
        """As the model does."""
        return self._model.encode_image(pixels, tiling)

    def embed(self, ids: Tensor) -> Tensor:
        """As the model does."""
        return self._model.embed(ids)

    def embed_coordinates(self, values: Tensor) -> Tensor:
        """As the model does."""
        return self._model.embed_coordinates(values)

    def embed_sizes(self, values: Tensor) -> Tensor:
        """As the model does."""
        return self._model.embed_sizes(values)

    def logits(self, hidden: Tensor) -> Tensor:
        """As the model does."""
        return self._model.logits(hidden)

    def coordinate_logits(self, hidden: Tensor) -> Tensor:
        """As the model does."""
        return self._model.coordinate_logits(hidden)

    def size_logits(self, hidden: Tensor) -> Tensor:
        """As the model does."""
        return self._model.size_logits(hidden)

    def coordinate_of(self, index: Tensor, bins: int) -> Tensor:
        """As the model does."""
        return self._model.coordinate_of(index, bins)

    def size_of(self, index: Tensor, bins: int) -> Tensor:
        """As the model does."""
        return self._model.size_of(index, bins)


class PlainModel(ModelView):
    """A model without its fused kernels: every operation is one of PyTorch's."""

    @property
    def heads(self) -> None:
        """None: the methods compute them."""

    @property
    def input_weights(self) -> None:
        """None: the methods compute with them."""

    def crop_encoder(self, *, fp8: bool = False) -> CropEncoder:
        """The plain one."""
        return self._model.vision

    def prompt_decoder(self, *, fp8: bool = False) -> None:
        """None: `forward` serves prompts."""

    def step_decoder(self) -> None:
        """None: `forward` serves decode steps."""
