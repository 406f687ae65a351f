"""What a tuning holds for: a card, sizes of a model, and versions."""

import dataclasses
import platform

import torch

from photonlite.kernels.triton_utils import triton
from photonlite.models.base import Model
from photonlite.models.precisions import Precisions


def made_for(
    model: Model, precisions: Precisions, device: torch.device, dtype: torch.dtype, version: str
) -> dict[str, str]:
    """Return card, model and versions by name; `version` is photonlite's."""
    card, sms = card_of(device)
    sizes = {**dataclasses.asdict(model.shape), "crops": str(model.crop_spec), "dtype": str(dtype)}
    del sizes["max_context"]  # a setting of the engine
    return {
        "card": card,
        "sms": str(sms),
        "model": ", ".join(f"{name} {value}" for name, value in sizes.items()),
        "weights": str(precisions) or "full",
        "photonlite": version,
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda),
        "triton": str(getattr(triton, "__version__", "none")),
        "python": platform.python_version(),
    }


def card_of(device: torch.device) -> tuple[str, int]:
    """Return the name of a card and its SMs; a CPU has none."""
    if device.type != "cuda":
        return device.type, 0
    card = torch.cuda.get_device_properties(device)
    return str(card.name), int(card.multi_processor_count)
