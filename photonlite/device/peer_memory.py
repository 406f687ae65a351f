"""Memory that the cards of all ranks read and write directly, over NVLink, by handles between processes.

Each rank allocates the same number of bytes, and opens those of the others. It asks the CUDA driver itself: PyTorch's
allocator gives no addresses of other processes that a kernel may follow, and its symmetric memory counts what it
exchanged for each process, so that a rank 0 that stays and others that start anew do not find each other.
"""

import ctypes
import functools
import logging
from contextlib import suppress
from typing import Any, Final, Self

import torch

_logger = logging.getLogger("photonlite")

_HANDLE_BYTES: Final = 64
_ENABLE_PEER_ACCESS: Final = 1
_MARK: Final = "handle:"


class PeerMemory:
    """The same number of bytes of each rank.

    Attributes:
        own: This rank's, uint8, zero at first.
        addresses: Where this card finds those of each rank, int64 [count], on the card.
        ended: Not zero once ranks must not wait for each other any more, int32 [1], on the card.
    """

    def __init__(self, driver: "_Driver", pointers: list[int], rank: int, size: int, device: torch.device) -> None:
        self._driver = driver
        self._pointers = pointers
        self._rank = rank
        self.own = torch.as_tensor(_Bytes(pointers[rank], size), device=device)
        self.addresses = torch.tensor(pointers, device=device)
        self.ended = torch.zeros(1, dtype=torch.int32, device=device)
        self._end = torch.ones(1, dtype=torch.int32, pin_memory=True)
        # Its copies go past kernels that wait.
        self._beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    @classmethod
    def open(cls, place: Any, rank: int, count: int, size: int, device: torch.device) -> Self | None:
        """Allocate, and meet the others in a store; None where this card cannot reach the memory of all of them.

        Every rank calls it; others may have succeeded.
        """
        name, driver, pointers, handle = "peer-memory-{}", _Driver(), [0] * count, b""
        try:
            pointers[rank] = driver.allocate(size)
            handle = driver.handle_of(pointers[rank])
        except _DriverError as error:
            _logger.warning("memory of rank %d is not shared: %s", rank, error)
        place.set(name.format(rank), f"{_MARK}{handle.hex()}")  # a store may take an empty value for none
        try:
            if not handle:
                raise _DriverError("its own is not shared")
            for other in range(count):
                found = bytes.fromhex(place.get(name.format(other)).decode().removeprefix(_MARK))
                pointers[other] = pointers[other] or driver.open(found)
        except _DriverError as error:
            _logger.warning("rank %d cannot reach the memory of all others: %s", rank, error)
            _release(driver, pointers, rank)
            return None
        return cls(driver, pointers, rank, size, device)

    def abort(self) -> None:
        """End all waiting for other ranks, with undefined results; from any thread."""
        device = self._beside.device
        with torch.inference_mode(), torch.cuda.device(device), torch.cuda.stream(self._beside):
            self.ended.copy_(self._end, non_blocking=True)

    def close(self) -> None:
        """Free this rank's bytes and leave the others', once this card's kernels have ended."""
        pointers, self._pointers = self._pointers, []
        with torch.cuda.device(self._beside.device):
            with suppress(RuntimeError):  # a card that is lost has no kernels
                torch.cuda.synchronize()
            _release(self._driver, pointers, self._rank)


def _release(driver: "_Driver", pointers: list[int], rank: int) -> None:
    for other, pointer in enumerate(pointers):
        if pointer:
            with suppress(_DriverError):
                driver.free(pointer) if other == rank else driver.leave(pointer)


class _Bytes:
    """Device memory as PyTorch takes it without a copy."""

    def __init__(self, pointer: int, size: int) -> None:
        self.__cuda_array_interface__ = {"data": (pointer, False), "shape": (size,), "typestr": "|u1", "version": 3}


class _DriverError(Exception):
    pass


class _Handle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * _HANDLE_BYTES),)


class _Driver:
    """What is needed of the CUDA driver, in the current context."""

    def allocate(self, size: int) -> int:
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        self._call("cuMemsetD8_v2", pointer, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        return pointer.value

    def handle_of(self, pointer: int) -> bytes:
        handle = _Handle()
        self._call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(pointer))
        return ctypes.string_at(ctypes.byref(handle), _HANDLE_BYTES)

    def open(self, handle: bytes) -> int:
        if not handle:
            raise _DriverError("the other rank has no memory")
        pointer, given = ctypes.c_uint64(), _Handle.from_buffer_copy(handle)
        self._call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), given, ctypes.c_uint(_ENABLE_PEER_ACCESS))
        return pointer.value

    def leave(self, pointer: int) -> None:
        self._call("cuIpcCloseMemHandle", ctypes.c_uint64(pointer))

    def free(self, pointer: int) -> None:
        self._call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def _call(self, name: str, *arguments: Any) -> None:
        result = getattr(_library(), name)(*arguments)
        if result:
            raise _DriverError(f"{name} returned {result}")


@functools.cache
def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as cause:  # as with cards of other makers
        raise _DriverError(str(cause)) from cause
    # Passed by value, which ctypes has to know.
    library.cuIpcOpenMemHandle_v2.argtypes = (ctypes.c_void_p, _Handle, ctypes.c_uint)
    return library
