"""How a KV cache stores keys and values: in the model's own type, or in FP8 with two constant scales a layer.

The scales come from the weights alone, so that answers do not depend on earlier requests:

```
2**-9 .. 2**-6          [2, 4)                 448     e4m3, in stored numbers: subnormal, normal, largest
                 root mean square of a layer           a hundred times as much is kept as it is, more is cut
```

Powers of two change no mantissa: dividing by them and multiplying again loses nothing that e4m3 does not lose.
"""

import math
from dataclasses import dataclass

import torch

from photonlite.config import KvDtype
from photonlite.errors import SettingsError
from photonlite.kernels.fp8 import CAPABILITY
from photonlite.kernels.reference.attention import FP8
from photonlite.models.base import Model


@dataclass(frozen=True, slots=True)
class KvFormat:
    """The type of stored keys and values, and in FP8 the scales of keys and of values of each layer."""

    dtype: torch.dtype
    scales: tuple[tuple[float, float], ...] = ()


def kv_format(setting: KvDtype, model: Model, device: torch.device, dtype: torch.dtype) -> KvFormat:
    """Decide how keys and values are stored, by `EngineConfig.kv_dtype` and the type of the weights.

    Raises:
        SettingsError: The card has no FP8.
    """
    if setting == "auto":
        return KvFormat(dtype)
    if device.type == "cuda" and (capability := torch.cuda.get_device_capability(device)) < CAPABILITY:
        has, least = (".".join(map(str, version)) for version in (capability, CAPABILITY))
        raise SettingsError(
            f"engine setting 'kv_dtype' is 'fp8', but {torch.cuda.get_device_name(device)} has compute capability "
            f"{has} and FP8 takes {least} or later: leave kv_dtype at 'auto', or use another card"
        )
    return KvFormat(FP8, tuple((fp8_scale(key), fp8_scale(value)) for key, value in model.kv_statistics()))


def fp8_scale(rms: float) -> float:
    """Return the power of two that scales a root mean square into [2, 4); 1 for one that is zero or not finite."""
    if not 0 < rms < math.inf:
        return 1.0
    return 2.0 ** (math.frexp(rms)[1] - 2)
