"""Opening the device that a torch device names."""

import torch

from photonlite.device.base import Device
from photonlite.device.cpu import CpuDevice
from photonlite.device.cuda import CudaDevice


def open_device(device: torch.device) -> Device:
    """Start the streams of a device, as `resolve_device` returns it."""
    return CudaDevice(device) if device.type == "cuda" else CpuDevice()
