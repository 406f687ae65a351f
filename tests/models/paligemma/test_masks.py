import io
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest

from photonlite.errors import CheckpointError
from photonlite.models.paligemma import masks
from photonlite.models.paligemma.masks import MaskDecoder
from tests.models.paligemma.masks import decoded, random_weights


@pytest.mark.parametrize(("dim", "width"), [(10, 8), (7, 12)])
def test_masks_are_those_of_an_independent_decoder(tmp_path: Path, dim: int, width: int) -> None:
    weights = random_weights(seed=dim, dim=dim, width=width)
    np.savez(tmp_path / "masks.npz", unrelated=np.ones(3), **weights)
    decoder = MaskDecoder(tmp_path / "masks.npz")
    codes = np.random.default_rng(1).integers(0, 128, 16)

    found = decoder(codes)

    assert found.shape == (64, 64)
    assert np.allclose(found, decoded(weights, codes.tolist()), atol=1e-4)
    assert decoder.codes == 128


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    path, weights = tmp_path / "masks.npz", random_weights()
    path.write_bytes(b"not a zip file")
    with pytest.raises(CheckpointError, match=r"cannot be read as an \.npz file"):
        MaskDecoder(path)
    np.savez(path, a=np.ones(3))
    with pytest.raises(CheckpointError, match="does not hold the decoder of outlines"):
        MaskDecoder(path)
    np.savez(path, **weights | {"decoder.2.net.0.weight": np.ones((3, 3), np.float32)})
    with pytest.raises(CheckpointError, match="does not hold the decoder of outlines"):
        MaskDecoder(path)
    np.savez(path, **{name: value for name, value in weights.items() if name != "decoder.12.bias"})
    with pytest.raises(CheckpointError, match="does not hold the decoder of outlines"):
        MaskDecoder(path)


def test_what_a_file_unpacks_to_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "masks.npz"
    np.savez_compressed(path, **random_weights() | {"decoder.99.weight": np.zeros(2**20, np.float32)})
    monkeypatch.setattr(masks, "_MOST_BYTES", 2**21)
    with pytest.raises(CheckpointError, match=r"unpacks to .* bytes, the limit is 2097152"):
        MaskDecoder(path)


def test_a_shape_that_no_memory_holds_is_refused(tmp_path: Path) -> None:
    path, head = tmp_path / "masks.npz", io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (2**58,)})
    with ZipFile(path, "w") as archive:
        archive.writestr("decoder.0.weight.npy", head.getvalue())
    with pytest.raises(CheckpointError, match=r"cannot be read as an \.npz file"):
        MaskDecoder(path)
