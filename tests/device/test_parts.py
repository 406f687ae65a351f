import threading
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from photonlite.device import parts
from photonlite.device.parts import Part, card_parts, divide
from photonlite.errors import MissingDependencyError, SettingsError

CARD = torch.device("cuda", 1)


def resource(sms: int) -> SimpleNamespace:
    return SimpleNamespace(sm=SimpleNamespace(smCount=sms))


class FakeDriver:
    """Functions of the driver, as cuda-bindings has them: a code first, 0 for success."""

    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def __init__(self, fails: str = "", total: int = 132) -> None:
        self._fails, self._total = fails, total
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            self.calls.append((name, *arguments))
            if name == self._fails:
                return (801,)
            return (0, *getattr(self, f"on_{name}")(*arguments))

        return call

    def on_cuDeviceGet(self, index: int) -> tuple[Any, ...]:  # noqa: N802
        return (f"device {index}",)

    def on_cuDeviceGetDevResource(self, device: Any, kind: Any) -> tuple[Any, ...]:  # noqa: N802
        return (resource(self._total),)

    def on_cuDevSmResourceSplitByCount(self, count: int, given: Any, flags: int, least: int) -> tuple[Any, ...]:  # noqa: N802
        sms = -(-least // 8) * 8
        return [resource(sms)], 1, resource(given.sm.smCount - sms)

    def on_cuDevResourceGenerateDesc(self, given: list[Any], count: int) -> tuple[Any, ...]:  # noqa: N802
        return (f"description of {given[0].sm.smCount}",)

    def on_cuGreenCtxCreate(self, described: Any, device: Any, flags: int) -> tuple[Any, ...]:  # noqa: N802
        return (f"green context, {described}",)

    def on_cuGreenCtxStreamCreate(self, green: Any, flags: int, priority: int) -> tuple[Any, ...]:  # noqa: N802
        return (len(self.calls),)

    def on_cuCtxFromGreenCtx(self, green: Any) -> tuple[Any, ...]:  # noqa: N802
        return (f"context of {green}",)


def test_a_card_is_divided_once_into_groups_and_the_rest() -> None:
    driver = FakeDriver()

    first, second = divide(CARD, 60, driver)

    assert (first.sms, second.sms) == (64, 68)
    assert first.context == "context of green context, description of 64"
    assert second.context == "context of green context, description of 68"
    assert first.stream != second.stream
    names = [call[0] for call in driver.calls]
    assert names.count("cuDevSmResourceSplitByCount") == 1, "two divisions would hand out the same SMs"
    assert driver.calls[0] == ("cuDeviceGet", 1)


def test_work_runs_in_a_thread_of_its_part_with_the_callers_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    entered: dict[int, int] = {}  # the thread that has entered a part, by its SMs
    monkeypatch.setattr(Part, "enter", lambda part, _: entered.update({part.sms: threading.get_ident()}))
    monkeypatch.setattr(torch.cuda, "set_stream", lambda _: None)
    monkeypatch.setattr(parts, "divide", lambda device, sms: divide(device, sms, FakeDriver()))
    variable: ContextVar[str] = ContextVar("variable", default="")
    variable.set("the caller's")

    found = card_parts.__wrapped__(CARD, 68)

    assert (found.decode.sms, found.encode.sms) == (64, 68)
    for part in found:
        assert part.run(lambda: (threading.get_ident(), variable.get())) == (entered[part.sms], "the caller's")
    assert len({threading.get_ident(), *entered.values()}) == 3


@pytest.mark.parametrize("sms", [0, 132, 200])
def test_sizes_that_no_part_can_have_are_refused(sms: int) -> None:
    with pytest.raises(SettingsError, match=rf"{sms} SMs cannot be cut from a card of 132"):
        divide(CARD, sms, FakeDriver())


def test_a_division_that_leaves_no_rest_is_refused() -> None:
    with pytest.raises(SettingsError, match="leaves a rest"):
        divide(CARD, 127, FakeDriver(total=128))


@pytest.mark.parametrize("name", ["cuDeviceGetDevResource", "cuGreenCtxCreate", "cuGreenCtxStreamCreate"])
def test_an_error_of_the_driver_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match=rf"{name} failed with 801"):
        divide(CARD, 64, FakeDriver(fails=name))


@pytest.mark.parametrize("kind", [AttributeError, RuntimeError])
def test_a_driver_that_is_too_old_is_named(kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Any:
        raise kind('Function "cuGreenCtxCreate" not found')

    driver = FakeDriver()
    monkeypatch.setattr(driver, "cuGreenCtxCreate", missing, raising=False)

    with pytest.raises(SettingsError, match=r"cuGreenCtxCreate is missing, CUDA 12\.4"):
        divide(CARD, 64, driver)


def test_without_the_bindings_the_error_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(parts.importlib, "import_module", fail)

    with pytest.raises(MissingDependencyError, match=r"photonlite\[tune\]"):
        divide(CARD, 64)
