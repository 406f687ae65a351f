import pytest
import torch

from photonlite.device import bodies
from photonlite.device.bodies import open_device
from photonlite.device.cpu import CpuDevice


def test_the_cpu_gets_threads() -> None:
    device = open_device(torch.device("cpu"))

    assert isinstance(device, CpuDevice)
    device.close()


def test_a_card_gets_cuda_streams_on_that_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "CudaDevice", lambda device: ("streams of", device))

    assert open_device(torch.device("cuda", 1)) == ("streams of", torch.device("cuda", 1))
