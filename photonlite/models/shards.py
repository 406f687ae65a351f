"""Safetensors files as one set of named tensors: a single file, or shards listed by an index.

Headers are read first, so that everything about a checkpoint can be checked before any of its data is touched. Data
are then read through memory mapping, one tensor at a time.
"""

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from photonlite.errors import CheckpointError

if TYPE_CHECKING:
    from torch import Tensor

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pickle", ".pkl"})
FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""Codes of the number types that weights may have, and bytes of one number."""
MAPPED_BYTES = 64 * 1024 * 1024
"""Bytes (or one larger tensor) that are read before a file is mapped anew: pages of a mapped file count as memory of
the process until it is unmapped. Parsing the header again takes about a millisecond."""


@dataclass(frozen=True)
class TensorInfo:
    """Header of one tensor; `dtype` is safetensors' code, such as "BF16"."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: Path


@dataclass(frozen=True)
class WeightFiles:
    """The safetensors files of one checkpoint; `index` lists the shards, and is None for a single file."""

    files: tuple[Path, ...]
    index: Path | None = None

    @classmethod
    def in_folder(cls, folder: Path) -> "WeightFiles":
        """Find the weights of a folder: model.safetensors, else the index, else the only safetensors file.

        Raises:
            CheckpointError: There are none, only pickles, several without an index, or the index cannot be followed.
        """
        if (folder / SINGLE_NAME).is_file():
            return cls((folder / SINGLE_NAME,))
        if (folder / INDEX_NAME).is_file():
            return cls(tuple(sorted(set(_read_index(folder / INDEX_NAME).values()))), folder / INDEX_NAME)
        found = sorted(folder.glob("*.safetensors"))
        if not found:
            raise _nothing_to_load(folder)
        if len(found) > 1:
            raise CheckpointError(
                f"{folder} holds {len(found)} safetensors files, {found[0].name} and others, and no "
                f"{INDEX_NAME}: add the index if they are shards of one model, or name the file to load"
            )
        return cls((found[0],))

    def headers(self) -> dict[str, TensorInfo]:
        """Read all headers, without data; return their tensors by name.

        Raises:
            CheckpointError: A file is unreadable or corrupt, a tensor is in two shards, or the index names a tensor
                that its shard does not hold.
        """
        infos: dict[str, TensorInfo] = {}
        for file in self.files:
            with _opened(file) as handle:
                for name in handle.keys():  # noqa: SIM118 -- the handle cannot be iterated
                    if name in infos:
                        raise CheckpointError(
                            f"tensor {name} is in {infos[name].file.name} and in {file}: it may be in one shard only"
                        )
                    part = handle.get_slice(name)
                    infos[name] = TensorInfo(name, tuple(part.get_shape()), part.get_dtype(), file)
        if self.index is not None:
            for name, file in _read_index(self.index).items():
                if name not in infos or infos[name].file != file:
                    raise CheckpointError(f"{self.index} says that tensor {name} is in {file.name}, which lacks it")
        return infos

    def tensors(self, infos: Iterable[TensorInfo]) -> Iterator[tuple[TensorInfo, "Tensor"]]:
        """Read tensors one at a time, on the CPU, in the type of the file; those of one file should be adjacent.

        A tensor is a view of the file: copy it, and keep no reference to it, or the pages it touches stay in memory.

        Raises:
            CheckpointError: A file has become unreadable.
        """
        for batch in _batches(infos):
            with _opened(batch[0].file) as handle:
                for info in batch:
                    yield info, handle.get_tensor(info.name)


def is_pickle(path: Path) -> bool:
    """Whether a file has a suffix of PyTorch's pickles."""
    return path.suffix.lower() in PICKLE_SUFFIXES


def pickle_refused(path: Path) -> CheckpointError:
    """Return the error for a pickle: why it is not loaded, and how to convert it."""
    return CheckpointError(
        f"{path} is a pickle, and loading a pickle can run any code that its author put there: only safetensors files "
        "are loaded. If you trust the file, convert it once: "
        f"safetensors.torch.save_file(torch.load({path.name!r}, weights_only=True), 'model.safetensors')"
    )


def read_json(path: Path, error: type[Exception]) -> dict[str, Any]:
    """Read a JSON object; raise `error` for a file that is unreadable, not JSON or not an object."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as cause:
        raise error(f"{path} cannot be read as JSON: {cause}") from cause
    if not isinstance(value, dict):
        raise error(f"{path} holds a JSON {type(value).__name__} where an object is needed")
    return value


def _read_index(index: Path) -> dict[str, Path]:
    """Return the file of each tensor that an index lists; all files exist."""
    weight_map = read_json(index, CheckpointError).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map from tensor names to shards: fetch the file again")
    for shard in dict.fromkeys(map(str, weight_map.values())):
        if Path(shard).name != shard:
            raise CheckpointError(f"{index} names the shard {shard!r}: a shard is a file of the same folder")
        if not (index.parent / shard).is_file():
            raise CheckpointError(f"{index} names the shard {shard}, which is not there: fetch the missing file")
    return {name: index.parent / str(shard) for name, shard in weight_map.items()}


def _nothing_to_load(folder: Path) -> CheckpointError:
    pickles = sorted(path for path in folder.iterdir() if is_pickle(path))
    if pickles:
        return pickle_refused(pickles[0])
    return CheckpointError(f"{folder} holds no safetensors file: put {SINGLE_NAME}, or shards with {INDEX_NAME}, there")


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    """Open a safetensors file; errors name it."""
    try:
        with safe_open(file, framework="pt") as handle:
            yield handle
    except (SafetensorError, OSError) as cause:
        raise CheckpointError(f"{file} is not a whole safetensors file ({cause}): {_remedy(file)}") from cause


def _remedy(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            pointer = stream.read(20).startswith(b"version https://git-")
    except OSError:
        pointer = False
    return "it is a Git LFS pointer, run `git lfs pull`" if pointer else "fetch or write it again"


def _batches(infos: Iterable[TensorInfo]) -> Iterator[list[TensorInfo]]:
    """Group tensors that follow each other in one file, up to `MAPPED_BYTES` a group."""
    batch: list[TensorInfo] = []
    size = 0
    for info in infos:
        more = math.prod(info.shape) * FLOAT_BYTES.get(info.dtype, 1)
        if batch and (info.file != batch[0].file or size + more > MAPPED_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(info)
        size += more
    if batch:
        yield batch
