"""The whole model: a vision tower and a text decoder."""

from torch import nn

from photonlite.models.qwen.config import QwenConfig
from photonlite.models.qwen.text import TextDecoder
from photonlite.models.qwen.vision import VisionTower


class QwenModel(nn.Module):
    """Modules `vision` and `text`, created without values."""

    def __init__(self, config: QwenConfig) -> None:
        super().__init__()
        self.config = config
        self.vision = VisionTower(config.vision, config.version)
        self.text = TextDecoder(config.text, config.version)
