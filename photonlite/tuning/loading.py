"""A model that is tuned on a card: what its tuning holds for, and the measurement."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from photonlite.device.names import resolve_device, resolve_dtype
from photonlite.device.parts import driver_bindings
from photonlite.errors import SettingsError
from photonlite.images.crops import CropSpec
from photonlite.models.base import Model
from photonlite.models.checkpoint import load_checkpoint
from photonlite.tuning.lanes import CudaCard
from photonlite.tuning.made_for import made_for
from photonlite.tuning.profile import Say, measure, sizes_of, tuning_of
from photonlite.tuning.schedule import Tuning
from photonlite.tuning.works import Decoding, encoder_of, encoding

CONTEXT = 850  # positions of each sequence while it is measured, or as many as the model has
CROPS = 9  # of the image, or as many as the model has
SPLITS = (32, 48, 64, 80)  # SMs of decoding
STREAMS = (8, 32, 64)


@dataclass(frozen=True, slots=True)
class Tunable:
    """A model on a card.

    Attributes:
        model: The model.
        device: The card.
        made_for: Card, sizes of the model and versions that a tuning holds for.
    """

    model: Model
    device: torch.device
    made_for: Mapping[str, str]

    def tune(self, say: Say) -> Tuning:
        """Measure the model and search for schedules.

        Raises:
            SettingsError: The driver cannot divide the card, or the model has no crops or no fused decode steps there.
            MissingDependencyError: cuda-bindings is not installed.
        """
        driver_bindings()  # a missing package is an error before minutes of measurements
        model, device, encoder = self.model, self.device, encoder_of(self.model)
        assert isinstance(model.crop_spec, CropSpec)
        most, context = min(CROPS, 1 + model.crop_spec.max_crops), min(CONTEXT, model.shape.max_context - 1)
        with torch.inference_mode():
            encodings = {crops: encoding(model, encoder, crops, device) for crops in sizes_of(most, 3)}
            steps = {streams: Decoding(model, streams, context, device) for streams in STREAMS}
        card = CudaCard(device)
        try:
            splits = [sms for sms in SPLITS if sms < card.whole().sms]
            return tuning_of(measure(card, encodings, steps, splits, say), self.made_for)
        finally:
            card.close()


def open_model(name: str | None, device: str, dtype: str, revision: str | None, version: str) -> Tunable:
    """Load a model on a card; see `api.loading.load` for names and errors.

    Raises:
        SettingsError: The device is a CPU.
    """
    where = resolve_device(device)
    if where.type != "cuda":
        raise SettingsError(
            "there is nothing to tune on a CPU, which has no multiprocessors to divide between encoding and decoding: "
            "run it on a machine with a card, or give --file to show what was tuned there"
        )
    numbers = resolve_dtype(dtype, where)
    loaded = load_checkpoint(name, device=where, dtype=numbers, revision=revision)
    return Tunable(loaded.model, where, made_for(loaded.model, loaded.precisions, where, numbers, version))
