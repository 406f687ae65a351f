"""The machine that figures come from."""

import platform
import subprocess

import torch


def describe(device: torch.device) -> str:
    """Name the machine and the versions."""
    versions = f"PyTorch {torch.__version__}, Python {platform.python_version()}"
    if device.type != "cuda":
        return f"{platform.processor() or platform.machine()} CPU, {versions}, {platform.system()}"
    name = torch.cuda.get_device_name(device)
    return f"{name}, CUDA {torch.version.cuda}, driver {_driver()}, {versions}"


def _driver() -> str:
    """Ask for the version of the driver, which PyTorch does not know."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "of unknown version"
