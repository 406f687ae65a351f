import pytest

from photonlite.models.base import CropEncoder
from photonlite.models.moondream.model import MoondreamModel
from tests.serving import PICTURE, double, serve


@pytest.mark.parametrize("wanted", [False, True])
def test_pictures_are_encoded_in_fp8_if_the_settings_say_so(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given = MoondreamModel.crop_encoder
    encoders: list[CropEncoder] = []
    encoded: list[CropEncoder] = []

    def spied(self: MoondreamModel, *, fp8: bool = False) -> CropEncoder:
        assert fp8 == wanted
        encoder = given(self, fp8=fp8)
        work = encoder.encode
        monkeypatch.setattr(encoder, "encode", lambda pixels: (encoded.append(encoder), work(pixels))[1])
        encoders.append(encoder)
        return encoder

    monkeypatch.setattr(MoondreamModel, "crop_encoder", spied)
    with serve(double(), fp8_linears=wanted) as model:
        model.caption(PICTURE, "short")

    assert len(encoders) == 1
    assert encoded == encoders
