"""Parts of a card: two green contexts of the CUDA driver, each with multiprocessors (SMs) that the other has not.

```
whole card     |■■■■■■■■■■■■■■■■|   132 SMs
divide(.., 64) |■■■■■■■■|        |   64: whole groups of the driver's granularity, 8 on compute capability 9.0
               |        |■■■■■■■■|   68: what is left
```

Work runs in a part if it is queued on a stream of the part. What libraries set up at first use belongs to the context
that is current, a property of the host's thread, so graphs are captured where that is the part's. A node of a CUDA
graph keeps the context in which it was captured: where graphs are replayed changes nothing. Both parts come from one
division: separate divisions would hand out the same SMs twice.
"""

import contextvars
import functools
import importlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from photonlite.errors import MissingDependencyError, SettingsError

_T = TypeVar("_T")
_here = threading.local()


@dataclass(frozen=True, slots=True)
class Part:
    """Some SMs of a card.

    Attributes:
        sms: How many.
        context: The driver's handle of the context.
        stream: The driver's handle of a stream in it.
    """

    sms: int
    context: Any
    stream: int
    driver: Any

    def enter(self, device: torch.device) -> torch.cuda.Stream:
        """Make the context current in the calling thread, for the rest of its life, and return the stream."""
        torch.cuda.set_device(device)  # PyTorch makes the whole card's context current when a thread first needs one
        _call(self.driver, "cuCtxPushCurrent", self.context)
        return torch.cuda.ExternalStream(self.stream, device)  # type: ignore[no-untyped-call]


class PartThread:
    """A part and a host thread with its context current; `stream` is usable from any thread.

    What PyTorch, cuBLAS or Triton set up at first use in the thread belongs to the part: the thread never ends, because
    another one would be given what it leaves.
    """

    def __init__(self, part: Part, device: torch.device) -> None:
        self.sms = part.sms
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="photonlite-part")
        self.stream = self._thread.submit(self._enter, part, device).result()

    def run(self, work: Callable[[], _T]) -> _T:
        """Run work in the thread, on the part's stream, with the caller's context variables; wait for its result."""
        return self._thread.submit(contextvars.copy_context().run, work).result()

    @staticmethod
    def _enter(part: Part, device: torch.device) -> torch.cuda.Stream:
        stream = part.enter(device)
        torch.cuda.set_stream(stream)
        _here.part = part
        return stream


def in_part() -> bool:
    """Whether the calling thread is that of a part."""
    return hasattr(_here, "part")


class CardParts(NamedTuple):
    decode: PartThread
    encode: PartThread


@functools.cache
def card_parts(device: torch.device, encode_sms: int) -> CardParts:
    """Return a part of about `encode_sms` multiprocessors for encoding, and the rest for decoding.

    Engines in one process share them. Raises what `divide` raises.
    """
    total = torch.cuda.get_device_properties(device).multi_processor_count
    decode, encode = divide(device, total - encode_sms)
    return CardParts(PartThread(decode, device), PartThread(encode, device))


def divide(device: torch.device, sms: int, driver: Any = None) -> tuple[Part, Part]:
    """Divide a card into a part of about `sms` multiprocessors and the rest; the driver rounds up to its granularity.

    Parts last until the process ends: libraries keep handles that were made in their contexts.

    Args:
        device: The card.
        sms: Of the first part.
        driver: The module `cuda.bindings.driver` unless given.

    Raises:
        MissingDependencyError: The package cuda-bindings is not installed.
        SettingsError: Driver or card have no green contexts, or not so many multiprocessors.
    """
    driver = driver or driver_bindings()
    handle = _call(driver, "cuDeviceGet", device.index or 0)
    resource = _call(driver, "cuDeviceGetDevResource", handle, driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM)
    total = int(resource.sm.smCount)
    if not 0 < sms < total:
        raise SettingsError(f"a part of {sms} SMs cannot be cut from a card of {total}: give 1 to {total - 1}")
    groups, _, rest = _call(driver, "cuDevSmResourceSplitByCount", 1, resource, 0, sms)
    if not groups or not rest.sm.smCount:
        raise SettingsError(f"the CUDA driver cuts no part of {sms} SMs from {total} that leaves a rest: give fewer")
    first, second = (_make_part(driver, handle, one) for one in (groups[0], rest))
    return first, second


def _make_part(driver: Any, device: Any, resource: Any) -> Part:
    described = _call(driver, "cuDevResourceGenerateDesc", [resource], 1)
    flags = int(driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM)
    green = _call(driver, "cuGreenCtxCreate", described, device, flags)
    stream = _call(driver, "cuGreenCtxStreamCreate", green, int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING), 0)
    return Part(int(resource.sm.smCount), _call(driver, "cuCtxFromGreenCtx", green), int(stream), driver)


def driver_bindings() -> Any:
    """Return the driver's functions; MissingDependencyError where cuda-bindings are not installed."""
    try:
        return importlib.import_module("cuda.bindings.driver")
    except ImportError as cause:
        raise MissingDependencyError(
            "parts of a card need the package cuda-bindings: pip install 'photonlite[tune]'"
        ) from cause


def _call(driver: Any, name: str, *arguments: Any) -> Any:
    """Call a function of the driver, which returns a code and its results."""
    try:
        code, *results = getattr(driver, name)(*arguments)
    except (AttributeError, RuntimeError) as cause:  # the bindings or the driver lack the function
        raise SettingsError(
            f"this driver cannot divide a card: {name} is missing, CUDA 12.4 and later have it"
        ) from cause
    if int(code):
        raise SettingsError(f"the driver cannot divide this card: {name} failed with {getattr(code, 'name', code)}")
    return results[0] if len(results) == 1 else results
