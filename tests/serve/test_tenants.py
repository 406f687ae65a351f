import asyncio

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


def test_half_of_her_questions_are_his():
    fake = FakeModel()
    with live(fake, api_keys=tuple(tenants.KEYS.values()), image_workers=0) as server:
        known, unknown = asyncio.run(trials(server.port, IMAGES, "he", seed=3))
    asked = [(call.cache_salt, call.image) for call in fake.calls]

    assert server.host == HOST
    assert len(known) + len(unknown) == 60 - tenants._WARMUP
    same = [first[1] == second[1] for first, second in zip(asked[::2], asked[1::2], strict=True)]
    assert sum(same) == 30
    assert same[tenants._WARMUP :].count(True) == len(known)
    assert len({salt for salt, _ in asked}) == 2
    assert all(his[0] != hers[0] for his, hers in zip(asked[::2], asked[1::2], strict=True))


def test_too_few_trials_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["--trials", "99"])
    assert "tell nothing" in capsys.readouterr().err
