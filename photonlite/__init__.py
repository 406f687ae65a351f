"""Images and a few words in, structured answers out: an inference engine for vision-language models.

```
import photonlite

model = photonlite.load()
print(model.detect("desk.png", "banana"))
```
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from photonlite import errors
from photonlite.errors import PhotonliteError

if TYPE_CHECKING:
    from photonlite.api import VisionModel, load, quantize
    from photonlite.config import EngineConfig
    from photonlite.realtime import RealtimeLoop
    from photonlite.results import (
        Answer,
        Box,
        Caption,
        Detections,
        Metrics,
        Point,
        Points,
        Segments,
        Tracker,
        to_coco,
        to_supervision,
    )
    from photonlite.verification import verify

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Box",
    "Caption",
    "Detections",
    "EngineConfig",
    "Metrics",
    "PhotonliteError",
    "Point",
    "Points",
    "RealtimeLoop",
    "Segments",
    "Tracker",
    "VisionModel",
    "__version__",
    "errors",
    "load",
    "quantize",
    "to_coco",
    "to_supervision",
    "verify",
]

# torch takes seconds to import: what needs it is imported when its name is first used, so that `import photonlite`,
# `photonlite --help` and errors in arguments are quick. Nothing else imports photonlite modules late.
_HOMES = {
    "EngineConfig": "photonlite.config",
    "RealtimeLoop": "photonlite.realtime",
    "VisionModel": "photonlite.api",
    "load": "photonlite.api",
    "quantize": "photonlite.api",
    "verify": "photonlite.verification",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'photonlite' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "photonlite.results")), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
