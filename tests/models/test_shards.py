import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from photonlite.errors import CheckpointError
from photonlite.models import shards
from photonlite.models.shards import find_weights, read_headers, read_tensors
from tests.models.checkpoints import golden_tensors, make_folder, shard


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_folder(tmp_path / "model")


def read(files: tuple[Path, ...]) -> dict[str, torch.Tensor]:
    return {info.name: tensor.clone() for info, tensor in read_tensors(read_headers(files))}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_single_file_gives_every_tensor(folder: Path) -> None:
    assert same(read(find_weights(folder)), golden_tensors())


@pytest.mark.parametrize("mapped_bytes", [1, 100_000])
def test_shards_give_every_tensor_however_often_files_are_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mapped_bytes: int
) -> None:
    shard(folder, golden_tensors())
    monkeypatch.setattr(shards, "MAPPED_BYTES", mapped_bytes)
    files = find_weights(folder)
    assert len(files) == 3
    assert same(read(files), golden_tensors())


def test_a_mapping_is_limited_to_its_bytes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MAPPED_BYTES", 300_000)
    infos = read_headers(find_weights(folder))
    batches = list(shards._batches(infos))
    sizes = [sum(4 * torch.Size(info.shape).numel() for info in batch) for batch in batches]
    assert [info for batch in batches for info in batch] == infos
    assert 1 < len(batches) < len(infos)
    assert all(size <= 300_000 or len(batch) == 1 for size, batch in zip(sizes, batches, strict=True))


def test_one_file_of_any_name_is_enough(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert find_weights(folder) == (folder / "weights.safetensors",)


def test_an_adapter_beside_the_weights_is_not_taken_for_them(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    (folder / "adapter_model.safetensors").write_bytes(b"")
    assert find_weights(folder) == (folder / "weights.safetensors",)


def test_several_files_without_an_index_are_ambiguous(folder: Path) -> None:
    shard(folder, golden_tensors())
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(CheckpointError, match=r"3 safetensors files.*index"):
        find_weights(folder)


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".ckpt", ".pickle", ".PT"])
def test_a_folder_of_pickles_is_refused_with_reason_and_remedy(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"weights{suffix}").write_bytes(b"\x80\x04.")
    with pytest.raises(CheckpointError, match=rf"weights{suffix} is a pickle.*run any code.*save_file"):
        find_weights(tmp_path)


def test_a_folder_without_weights_says_what_to_put_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no safetensors file: put model\.safetensors"):
        find_weights(tmp_path)


def damaged(kind: str, whole: bytes) -> bytes:
    return {
        "empty": b"",
        "cut in the length": whole[:5],
        "cut in the header": whole[:200],
        "cut in the data": whole[:-1],
        "too long": whole + b"\0",
        "garbage": bytes(range(256)) * 4,
        "header of no end": struct.pack("<Q", 1 << 60) + b"{}",
        "header of no JSON": struct.pack("<Q", 8) + b"notjson!",
    }[kind]


@pytest.mark.parametrize(
    "kind",
    [
        "empty",
        "cut in the length",
        "cut in the header",
        "cut in the data",
        "too long",
        "garbage",
        "header of no end",
        "header of no JSON",
    ],
)
def test_a_corrupt_file_is_named(folder: Path, kind: str) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(damaged(kind, file.read_bytes()))
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a whole safetensors file.*again"):
        read_headers(find_weights(folder))


def test_a_git_lfs_pointer_is_recognised(folder: Path) -> None:
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    with pytest.raises(CheckpointError, match="git lfs pull"):
        read_headers(find_weights(folder))


def test_a_link_to_nothing_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "weights.safetensors").symlink_to(folder / "blob")
    with pytest.raises(CheckpointError, match=r"weights\.safetensors"):
        read_headers(find_weights(folder))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read as JSON"),
        ("[]", "JSON list"),
        ("{}", "no weight_map"),
        ('{"weight_map": {}}', "no weight_map"),
        ('{"weight_map": {"a": "../other/model.safetensors"}}', "a file of the same folder"),
        ('{"weight_map": {"a": 3}}', "names the shard 3, which is not there"),
        ("[" * 100_000, "cannot be read as JSON"),
    ],
)
def test_a_bad_index_is_named(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(CheckpointError, match=rf"index\.json.*{message}"):
        find_weights(tmp_path)


def test_a_missing_shard_is_named(folder: Path) -> None:
    shard(folder, golden_tensors())
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model-00002-of-00003\.safetensors, which is not there"):
        find_weights(folder)


def test_a_tensor_in_two_shards_is_named_with_both(folder: Path) -> None:
    tensors = golden_tensors()
    shard(folder, tensors)
    extra = "model.text.wte"
    for n in (1, 2):
        save_file({extra: tensors[extra], f"t{n}": torch.zeros(1)}, folder / f"model-0000{n}-of-00003.safetensors")
    with pytest.raises(CheckpointError, match=r"model\.text\.wte is in model-00001.* and in .*model-00002"):
        read_headers(find_weights(folder))
