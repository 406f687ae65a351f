"""Safetensors files as one set of named tensors: a single file, or shards listed by an index.

Headers are read first, so that everything about a checkpoint can be checked before any of its data is touched. Data
are then read through memory mapping, one tensor at a time.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from photonlite.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

SINGLE_NAME = "model.safetensors"
CONFIG_NAME = "config.json"
TOKENIZER_NAME = "tokenizer.json"
INDEX_NAME = "model.safetensors.index.json"
ADAPTER_CONFIG_NAME, ADAPTER_NAME = "adapter_config.json", "adapter_model.safetensors"
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pickle", ".pkl"})
FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Codes of the number types that weights may have, and bytes of one number."""
MAPPED_BYTES = 64 * 1024 * 1024
"""Bytes (or one larger tensor) that are read before a file is mapped anew: pages of a mapped file count as memory of
the process until it is unmapped. Parsing the header again takes about a millisecond."""

JSON_BYTES, TOKENIZER_BYTES, HEADER_BYTES, NAME_CHARACTERS = 8 * 2**20, 128 * 2**20, 16 * 2**20, 500
"""Limits of a JSON file or a chat template, of tokenizer.json, of a safetensors header, and of a tensor's name."""

_watcher: ContextVar[Callable[[int], object]] = ContextVar("watcher", default=lambda count: None)


@dataclass(frozen=True)
class TensorInfo:
    """Header of one tensor; `dtype` is safetensors' code, such as "BF16"."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Path


def find_weights(folder: Path) -> tuple[Path, ...]:
    """Return model.safetensors, the shards of the index, or the only safetensors file; CheckpointError otherwise."""
    if (folder / SINGLE_NAME).is_file():
        return (folder / SINGLE_NAME,)
    if (folder / INDEX_NAME).is_file():
        return _listed(folder / INDEX_NAME)
    found = sorted(path for path in folder.glob("*.safetensors") if path.name != ADAPTER_NAME)
    if len(found) > 1:
        raise CheckpointError(
            f"{folder} holds {len(found)} safetensors files, {found[0].name} and others, and no "
            f"{INDEX_NAME}: add the index if they are shards of one model, or name the file to load"
        )
    if not found:
        for path in sorted(folder.iterdir()):
            if path.stem != Path(ADAPTER_NAME).stem:
                refuse_pickle(path)
        refuse_adapter(folder, CheckpointError)
        raise CheckpointError(
            f"{folder} holds no safetensors file: put {SINGLE_NAME}, or shards with {INDEX_NAME}, there"
        )
    return (found[0],)


def read_headers(files: Iterable[Path]) -> list[TensorInfo]:
    """Read all headers, without data; CheckpointError for an unreadable file or a tensor in two shards."""
    infos: dict[str, TensorInfo] = {}
    for file in files:
        with _opened(file) as handle:
            for name in handle.keys():  # noqa: SIM118 -- the handle cannot be iterated
                if len(name) > NAME_CHARACTERS:
                    raise CheckpointError(
                        f"{file} has a tensor with a name of {len(name)} characters: the limit is {NAME_CHARACTERS}"
                    )
                if name in infos:
                    raise CheckpointError(
                        f"tensor {name} is in {infos[name].file.name} and in {file}: it may be in one shard only"
                    )
                part = handle.get_slice(name)
                infos[name] = TensorInfo(name, tuple(part.get_shape()), part.get_dtype(), file)
    return list(infos.values())


def read_tensors(infos: Iterable[TensorInfo]) -> Iterator[tuple[TensorInfo, "Tensor"]]:
    """Read tensors one at a time, on the CPU, in the type of the file; those of one file should be adjacent.

    A tensor is a view of the file: copy it, and keep no reference to it, or the pages it touches stay in memory.
    """
    for batch in _batches(infos):
        with _opened(batch[0].file) as handle:
            for info in batch:
                yield info, handle.get_tensor(info.name)
                _watcher.get()(_size_of(info))


@contextmanager
def watched(on_read: Callable[[int], object]) -> Iterator[None]:
    """Call a function with the size in bytes of each tensor that is read in the block."""
    token = _watcher.set(on_read)
    try:
        yield
    finally:
        _watcher.reset(token)


def stored_bytes(files: Iterable[Path]) -> int:
    """Return the bytes of all tensors in some files."""
    return sum(map(_size_of, read_headers(files)))


def refuse_adapter(folder: Path, error: type[Exception]) -> None:
    """Raise `error` for a folder without a model that holds an adapter."""
    if (folder / ADAPTER_CONFIG_NAME).is_file():
        raise error(
            f"{folder} holds an adapter alone: load the model that it was trained for, which {ADAPTER_CONFIG_NAME} "
            "names, and then the adapter with load_adapter"
        )


def refuse_pickle(path: Path) -> None:
    """Raise CheckpointError for a path with a suffix of PyTorch's pickles."""
    if path.suffix.lower() in PICKLE_SUFFIXES:
        raise CheckpointError(
            f"{path} is a pickle, and loading a pickle can run any code that its author put there: only safetensors "
            "files are loaded. If you trust the file, convert it once: "
            f"safetensors.torch.save_file(torch.load({path.name!r}, weights_only=True), 'model.safetensors')"
        )


def read_bounded(path: Path, error: type[Exception], most: int = JSON_BYTES) -> bytes:
    """Read a file of at most so many bytes; raise `error` for a larger or unreadable one."""
    try:
        with path.open("rb") as stream:
            content = stream.read(most + 1)
    except OSError as cause:
        raise error(f"{path} cannot be read: {cause}") from cause
    if len(content) > most:
        raise error(f"{path} has more than {most} bytes, the limit for this kind of file: use a smaller one")
    return content


def read_json(path: Path, error: type[Exception], most: int = JSON_BYTES) -> dict[str, Any]:
    """Read a JSON object; raise `error` for a file that is unreadable, too large, not JSON or not an object."""
    content = read_bounded(path, error, most)
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as cause:
        raise error(f"{path} cannot be read as JSON: {cause}") from cause
    if not isinstance(value, dict):
        raise error(f"{path} holds a JSON {type(value).__name__} where an object is needed")
    return value


def _listed(index: Path) -> tuple[Path, ...]:
    """Return the shards that an index lists; all exist."""
    weight_map = read_json(index, CheckpointError).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map from tensor names to shards: fetch the file again")
    shards = sorted(set(map(str, weight_map.values())))
    for shard in shards:
        if Path(shard).name != shard:
            raise CheckpointError(f"{index} names the shard {shard!r}: a shard is a file of the same folder")
        if not (index.parent / shard).is_file():
            raise CheckpointError(f"{index} names the shard {shard}, which is not there: fetch the missing file")
    return tuple(index.parent / shard for shard in shards)


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Open a safetensors file; errors name it."""
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
        if HEADER_BYTES < size < file.stat().st_size:
            raise CheckpointError(f"{file} has a header of {size} bytes: the limit is {HEADER_BYTES}")
        with safe_open(file, framework="pt") as handle:
            yield handle
    except (SafetensorError, OSError) as cause:
        remedy = "fetch or write it again"
        with suppress(OSError), file.open("rb") as stream:
            if stream.read(20).startswith(b"version https://git-"):
                remedy = "it is a Git LFS pointer, run `git lfs pull`"
        raise CheckpointError(f"{file} is not a whole safetensors file ({cause}): {remedy}") from cause


def _size_of(info: TensorInfo) -> int:
    return math.prod(info.shape) * FLOAT_BYTES.get(info.dtype, 1)


def _batches(infos: Iterable[TensorInfo]) -> Iterator[list[TensorInfo]]:
    """Group tensors that follow each other in one file, up to `MAPPED_BYTES` a group."""
    batch: list[TensorInfo] = []
    size = 0
    for info in infos:
        more = _size_of(info)
        if batch and (info.file != batch[0].file or size + more > MAPPED_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(info)
        size += more
    if batch:
        yield batch
