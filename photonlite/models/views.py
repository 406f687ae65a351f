"""Models that forward to another model all members but a few."""

from typing import Any

from photonlite.models.base import CropEncoder, Model

_AnyBase: Any = object  # type checkers then accept a view wherever a model is expected


class ModelView(_AnyBase):  # type: ignore[misc]
    """Forwards to a model every member that a subclass does not define."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


class UnfusedModel(ModelView):
    """A model without its fused kernels: every operation is one of PyTorch's."""

    heads = None
    input_weights = None

    def crop_encoder(self, *, fp8: bool = False) -> CropEncoder:
        """Return the encoder in operations of PyTorch."""
        vision: CropEncoder = self._model.vision
        return vision

    def prompt_decoder(self, *, fp8: bool = False) -> None:
        """None: `forward` serves prompts."""

    def step_decoder(self) -> None:
        """None: `forward` serves decode steps."""
