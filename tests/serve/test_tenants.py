import asyncio
import contextlib

import numpy as np
import pytest

from bench.serve import tenants
from bench.serve.tenants import HOST, auc, error_of, main, trials
from tests.server.fake import FakeModel
from tests.server.live import live

IMAGES = [b"image %d" % number for number in range(2 * 60)]


def test_auc_is_the_chance_of_being_sooner():
    assert auc([1, 2], [3, 4]) == 1
    assert auc([3, 4], [1, 2]) == 0
    assert auc([1, 4], [2, 3]) == 0.5
    assert auc([1, 1], [1, 1]) == 0.5
    assert auc([1, 2, 2], [2, 3]) == pytest.approx((2 + 1.5 + 1.5) / 6)


def test_error_is_the_spread_of_values_without_a_difference():
    random = np.random.default_rng(0)
    values = [auc(*random.random((2, 40))) for _ in range(2000)]

    assert np.mean(values) == pytest.approx(0.5, abs=0.01)
    assert np.std(values) == pytest.approx(error_of(40, 40), rel=0.06)


def test_half_of_the_questions_were_asked_before():
    fake = FakeModel()
    with live(fake, api_keys=tuple(tenants.KEYS.values()), image_workers=0) as server:
        known, unknown = asyncio.run(trials(server.port, IMAGES, "first", seed=3))
    asked = [(call.cache_salt, call.image) for call in fake.calls]

    assert server.host == HOST
    assert len(known) + len(unknown) == 60 - tenants._WARMUP
    same = [first[1] == second[1] for first, second in zip(asked[::2], asked[1::2], strict=True)]
    assert sum(same) == 30
    assert same[tenants._WARMUP :].count(True) == len(known)
    assert len({salt for salt, _ in asked}) == 2
    assert all(one[0] != other[0] for one, other in zip(asked[::2], asked[1::2], strict=True))


@pytest.mark.long
def test_the_page_says_which_aims_are_reached(monkeypatch, tmp_path, capsys):
    # A fake model has no cache, so that the control fails.
    page = tmp_path / "page.md"
    keys = tuple(tenants.KEYS.values())
    with live(api_keys=keys, image_workers=0) as server:
        monkeypatch.setattr(tenants, "child", lambda *_: contextlib.nullcontext())
        monkeypatch.setattr(tenants, "wait_for", lambda *_: {"port": server.port})
        assert main(["--trials", "100", "--size", "160", "120", "--output", str(page)]) == 1

    text = page.read_text()
    assert text in capsys.readouterr().out
    rows = ("| another tenant", "| the same tenant")
    first, second = (line.split(" | ") for line in text.splitlines() if line.startswith(rows))
    assert int(first[1]) + int(first[2]) == 100 - tenants._WARMUP
    assert "0.45 to 0.55: " in first[-1]
    assert "over 0.9: MISSED" in second[-1]


def test_too_few_trials_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--trials", "99"])
    assert "tell nothing" in capsys.readouterr().err
