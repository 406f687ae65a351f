"""Images and a few words in, structured answers out: an inference engine for the Moondream family.

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
    from photonlite.api import VisionModel, load
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
        to_coco,
        to_supervision,
    )

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
    "VisionModel",
    "__version__",
    "errors",
    "load",
    "to_coco",
    "to_supervision",
]

# torch takes seconds to import. What needs it is imported when its name is first asked for, so that `import photonlite`
# itself, `photonlite --help` and complaints about arguments come at once. Nothing else imports photonlite modules late.
_HOMES = {
    "Answer": "photonlite.results",
    "Box": "photonlite.results",
    "Caption": "photonlite.results",
    "Detections": "photonlite.results",
    "EngineConfig": "photonlite.config",
    "Metrics": "photonlite.results",
    "Point": "photonlite.results",
    "Points": "photonlite.results",
    "RealtimeLoop": "photonlite.realtime",
    "Segments": "photonlite.results",
    "VisionModel": "photonlite.api",
    "load": "photonlite.api",
    "to_coco": "photonlite.results",
    "to_supervision": "photonlite.results",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'photonlite' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
