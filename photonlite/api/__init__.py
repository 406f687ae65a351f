"""The Python interface: load a model, ask about images."""

from photonlite.api.loading import load
from photonlite.api.model import VisionModel
from photonlite.api.quantizing import quantize
from photonlite.api.tasks import EncodedImage, Options
from photonlite.config import EngineSettings
from photonlite.request import RequestSettings

__all__ = ["EncodedImage", "EngineSettings", "Options", "RequestSettings", "VisionModel", "load", "quantize"]
