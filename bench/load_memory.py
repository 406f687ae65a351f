"""Peak host memory of loading a checkpoint of Moondream 2's size (1.93 B parameters, bfloat16, random values).

`python -m bench.load_memory` writes the checkpoint under the public names into a temporary folder (3.9 GB, removed
afterwards), loads it in a child process, checks the peak against `LIMIT`, and prints a table; `--write` keeps it as
bench/results/load_memory.md. The checkpoint is tried as one file and as shards.

What is measured, all of the child process and all from the kernel:

- peak: VmHWM, the most memory that was ever resident: anonymous pages and pages of mapped files together, with the
  interpreter and PyTorch themselves.
- before: VmRSS when all is imported and nothing is loaded.
- anonymous, file-backed: RssAnon and RssFile when the model stands.
- time: loading, as a multiple of reading the same files from the page cache into fresh memory with one thread (loading
  copies with all of PyTorch's threads, so less than 1 is possible). Most of either is the kernel handing out pages, and
  that varies several-fold when other work shares the machine: the two alternate, and the median, least and greatest
  ratio of `ROUNDS` are given. Loads for the timing come after the memory was taken down.
"""

import argparse
import json
import os
import platform
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch

from photonlite.models.families import LoadOptions
from photonlite.models.moondream.config import MoondreamConfig
from photonlite.models.moondream.model import MoondreamModel
from photonlite.models.moondream.weights import load_model
from photonlite.models.shards import find_weights

LIMIT = 1.2
RESULT = Path(__file__).parent / "results" / "load_memory.md"
ROUNDS = 7
_BYTES = 2  # of a bfloat16
_CHUNK = 1 << 24

Shapes = list[tuple[str, tuple[int, ...]]]


def parameters() -> Shapes:
    """List the tensors of Moondream 2 under their public names."""
    with torch.device("meta"):
        model = MoondreamModel(MoondreamConfig.from_dict({}))
    return [(f"model.{name}", tuple(value.shape)) for name, value in model.state_dict().items()]


def write_checkpoint(folder: Path, shards: int) -> int:
    """Write the checkpoint, one tensor in memory at a time; give its bytes."""
    names = iter(parameters())
    per_shard = -(-len(parameters()) // shards)
    weight_map: dict[str, str] = {}
    for n in range(shards):
        part = list(islice(names, per_shard))
        file = folder / (f"model-{n + 1:05}-of-{shards:05}.safetensors" if shards > 1 else "model.safetensors")
        weight_map |= dict.fromkeys((name for name, _ in part), file.name)
        _write_safetensors(file, part)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def _write_safetensors(file: Path, tensors: Shapes) -> None:
    header, end = {}, 0
    for name, shape in tensors:
        start, end = end, end + _BYTES * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for _, shape in tensors:
            for chunk in _random_chunks(torch.Size(shape).numel()):
                stream.write(chunk)


def _random_chunks(count: int) -> Iterator[bytes]:
    for start in range(0, count, _CHUNK):
        values = torch.randn(min(_CHUNK, count - start)) * 0.02
        yield values.bfloat16().view(torch.int16).numpy().tobytes()


def memory() -> dict[str, int]:
    """Return the memory lines of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = (line.split() for line in lines if line.endswith(" kB"))
    return {field[0].rstrip(":"): int(field[1]) * 1024 for field in fields}


def measure(folder: Path) -> dict[str, float]:
    """Load the checkpoint in this process and give the figures; called in a fresh process."""
    weights = find_weights(folder)
    before = memory()
    model = _load(weights)
    after = memory()
    count = sum(parameter.numel() for parameter in model.parameters())
    del model
    ratios = [_seconds(_load, weights) / _seconds(_read, weights) for _ in range(ROUNDS)]
    size = sum(file.stat().st_size for file in weights)
    return {
        "parameters": count,
        "peak": after["VmHWM"] / size,
        "before": before["VmRSS"] / size,
        "anonymous": after["RssAnon"] / size,
        "file-backed": after["RssFile"] / size,
        "time": statistics.median(ratios),
        "least": min(ratios),
        "greatest": max(ratios),
    }


def _load(weights: tuple[Path, ...]) -> MoondreamModel:
    return load_model(weights, MoondreamConfig.from_dict({}), LoadOptions("cpu", torch.bfloat16))


def _read(weights: tuple[Path, ...]) -> list[torch.Tensor]:
    """Read the files into memory that the kernel has yet to hand out."""
    contents = []
    for file in weights:
        content = torch.empty(file.stat().st_size, dtype=torch.uint8)
        view, at = content.numpy().data, 0
        with file.open("rb", buffering=0) as stream:
            while read := stream.readinto(view[at:]):
                at += read
        contents.append(content)
    return contents


def _seconds(work: Callable[[tuple[Path, ...]], object], weights: tuple[Path, ...]) -> float:
    """Time a piece of work; what it gives is freed after the clock has stopped."""
    start = time.perf_counter()
    result = work(weights)
    seconds = time.perf_counter() - start
    del result
    return seconds


def measure_in_child(shards: int) -> dict[str, float]:
    """Write a checkpoint of so many shards, and measure its loading in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="photonlite-load-") as folder:
        write_checkpoint(Path(folder), shards)
        command = [sys.executable, "-m", "bench.load_memory", "--child", folder]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def report(rows: dict[int, dict[str, float]], date: str) -> str:
    """Write the figures as a page."""
    columns = ("peak", "before", "anonymous", "file-backed", "time", "least", "greatest")
    table = [f"| files | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    table += [f"| {files} | {' | '.join(f'{row[name]:.3f}' for name in columns)} |" for files, row in rows.items()]
    count = next(iter(rows.values()))["parameters"]
    return "\n".join(
        [
            "# Memory of loading a checkpoint of Moondream 2's size",
            "",
            f"{date}, CPU ({os.cpu_count()} cores), {platform.system()}, Python {platform.python_version()}, "
            f"PyTorch {torch.__version__}.",
            f"{count:,.0f} parameters in bfloat16, loaded as bfloat16.",
            f"Memory as a multiple of the checkpoint's size; the limit on the peak is {LIMIT}.",
            "Time as a multiple of reading the same files from the page cache into fresh memory with one thread:",
            f"median, least and greatest of {ROUNDS} rounds.",
            "",
            *table,
            "",
            "Peak is VmHWM of the process: anonymous and file-backed pages together, with the interpreter and PyTorch,",
            "which are also the whole of `before`. The times are rough: other work on the machine changes",
            "them several-fold. Made by `python -m bench.load_memory --write`.",
            "",
        ]
    )


def main() -> int:
    """Run the measurement; 1 if the peak is over the limit."""
    parser = argparse.ArgumentParser(description="Peak host memory of loading a checkpoint of Moondream 2's size")
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 4], help="numbers of files to try")
    parser.add_argument("--date", default=time.strftime("%Y-%m-%d"), help="date of the page")
    parser.add_argument("--write", action="store_true", help=f"write {RESULT.name}")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(arguments.child)))
        return 0
    rows = {shards: measure_in_child(shards) for shards in arguments.shards}
    page = report(rows, arguments.date)
    print(page)
    if arguments.write:
        RESULT.write_text(page)
    return int(any(row["peak"] > LIMIT for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
