import pytest
import torch

from photonlite.device import names
from photonlite.device.cpu import CpuDevice
from photonlite.device.names import open_device, resolve_device, resolve_dtype
from photonlite.errors import SettingsError

CPU = torch.device("cpu")


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)


@pytest.fixture
def no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("no_card")
def test_auto_is_the_cpu_without_a_card() -> None:
    assert resolve_device("auto") == CPU


@pytest.mark.usefixtures("two_cards")
def test_auto_is_the_first_card() -> None:
    assert resolve_device("auto") == torch.device("cuda", 0)
    assert resolve_device("cuda") == torch.device("cuda", 0)
    assert resolve_device("cuda:1") == torch.device("cuda", 1)
    assert resolve_device(torch.device("cpu")) == CPU


@pytest.mark.usefixtures("no_card")
@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda")])
def test_a_card_that_is_not_there_is_refused(device: str | torch.device) -> None:
    with pytest.raises(SettingsError, match="0 CUDA devices; try device='cpu'"):
        resolve_device(device)


@pytest.mark.usefixtures("two_cards")
def test_an_index_beyond_the_cards_is_refused() -> None:
    with pytest.raises(SettingsError, match="'cuda:2' is not here: this machine has 2"):
        resolve_device("cuda:2")


@pytest.mark.parametrize("device", ["gpu", "", "cpu:x", None, 1.5])
def test_an_unknown_device_is_refused(device: str) -> None:
    with pytest.raises(SettingsError, match="is unknown"):
        resolve_device(device)


def test_a_device_that_is_not_supported_is_refused() -> None:
    with pytest.raises(SettingsError, match="runs on cpu and cuda"):
        resolve_device("meta")


@pytest.mark.parametrize(
    ("capability", "expected"), [((9, 0), torch.bfloat16), ((8, 0), torch.bfloat16), ((7, 5), torch.float32)]
)
def test_auto_is_bfloat16_where_the_card_computes_in_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)

    assert resolve_dtype("auto", torch.device("cuda", 0)) == expected


def test_auto_is_float32_on_the_cpu() -> None:
    assert resolve_dtype("auto", CPU) == torch.float32


def test_dtypes_are_given_by_name_or_as_objects() -> None:
    for name in ("float32", "bfloat16", "float16"):
        assert resolve_dtype(name, CPU) == resolve_dtype(getattr(torch, name), CPU) == getattr(torch, name)


@pytest.mark.parametrize("dtype", ["fp64", "int8", torch.int8, torch.float64, None, 32, ["float32"]])
def test_an_unknown_type_is_refused(dtype: str) -> None:
    with pytest.raises(SettingsError, match="give 'auto', 'float32', 'float16', 'bfloat16'"):
        resolve_dtype(dtype, CPU)


def test_the_cpu_opens_as_worker_threads() -> None:
    device = open_device(CPU)

    assert isinstance(device, CpuDevice)
    device.close()


def test_a_cuda_device_opens_as_streams_on_that_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "CudaDevice", lambda *given: ("streams of", *given))

    assert open_device(torch.device("cuda", 1)) == ("streams of", torch.device("cuda", 1), None)
