"""Names of devices and number types, "auto" included, as torch objects; opening a device."""

import torch

from photonlite.device.base import Device
from photonlite.device.cpu import CpuDevice
from photonlite.device.cuda import CudaDevice
from photonlite.errors import SettingsError

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_KINDS = ("cpu", "cuda")


def open_device(device: torch.device, encode: torch.cuda.Stream | None = None) -> Device:
    """Open a device; `encode`, on CUDA, is the stream of encodings where it is not to be a new one."""
    return CudaDevice(device, encode) if device.type == "cuda" else CpuDevice()


def resolve_device(device: str | torch.device) -> torch.device:
    """Return a device with its index; "auto" is CUDA where there is one. SettingsError if this machine lacks it."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as cause:
        raise SettingsError(
            f"device {str(device)[:40]!r} is unknown: give 'auto', 'cpu', 'cuda' or 'cuda:1'"
        ) from cause
    if found.type not in _KINDS:
        raise SettingsError(f"device {str(found)!r} is not supported: photonlite runs on {' and '.join(_KINDS)}")
    if found.type == "cpu":
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = found.index if found.index is not None else (torch.cuda.current_device() if count else 0)
    if index >= count:
        raise SettingsError(
            f"device 'cuda:{index}' is not here: this machine has {count} CUDA devices; try device='cpu'"
        )
    return torch.device("cuda", index)


def resolve_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """Return a torch type; "auto" is bfloat16 on CUDA of capability 8.0 and above, else float32."""
    if dtype == "auto":
        native = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        return torch.bfloat16 if native else torch.float32
    if isinstance(dtype, str) and dtype in _DTYPES:
        return _DTYPES[dtype]
    if isinstance(dtype, torch.dtype) and dtype in _DTYPES.values():
        return dtype
    raise SettingsError(f"dtype {str(dtype)[:40]!r} is unknown: give 'auto', {', '.join(map(repr, _DTYPES))}")
