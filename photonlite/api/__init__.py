"""The Python interface: load a model, ask about images."""

from photonlite.api.loading import load
from photonlite.api.model import VisionModel
from photonlite.api.tasks import EncodedImage

__all__ = ["EncodedImage", "VisionModel", "load"]
