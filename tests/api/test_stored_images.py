"""A second question about an image whose pages are gone: its stored embeddings take the place of an encoding."""

from functools import partial
from threading import Event
from typing import Any

import numpy as np
import pytest

import photonlite
from photonlite import VisionModel
from photonlite.cache.manager import CacheManager
from photonlite.cache.store.disk import DiskTier, entries
from photonlite.errors import SettingsError
from photonlite.image_inputs import HostTensor
from tests.models.qwen.tiny import reference_model, save
from tests.serving import GUARD, counters, make_image, serve


def push_out(model: VisionModel) -> None:
    """Evict every prefix of earlier images, as soon as no step carries their sequences."""
    cache = model._session.engine._core.scheduler.cache
    while cache.pages.free < cache.pages.usable:
        done = Event()
        model._session.engine._loop.post(partial(_evict, cache, done))
        assert done.wait(GUARD)


def _evict(cache: CacheManager, done: Event) -> None:
    cache.prefix.evict(cache.prefix.idle_pages)
    done.set()


def test_an_image_is_not_encoded_again_and_answers_stay_the_same() -> None:
    with serve() as model:
        first = model.detect(make_image(1), "mug")
        push_out(model)
        before = counters(model)
        second = model.detect(make_image(1), "mug")
        after = counters(model)

    assert second == first
    assert after["crops_encoded"] == before["crops_encoded"]
    assert after["images_restored"] == before["images_restored"] + 1


def test_tiles_are_restored_as_images_are() -> None:
    with serve() as model:
        first = model.detect(make_image(1, (60, 50)), "mug", tile=(2, 2))
        push_out(model)
        before = counters(model)
        second = model.detect(make_image(1, (60, 50)), "mug", tile=(2, 2))
        after = counters(model)

    assert second == first
    assert after["crops_encoded"] == before["crops_encoded"]
    assert after["images_restored"] == before["images_restored"] + 5


@pytest.mark.parametrize("settings", [{"embedding_cache_bytes": 0}, {"embedding_cache_bytes": 100}])
def test_without_room_it_is_encoded_again(settings: dict[str, Any]) -> None:
    with serve(**settings) as model:
        first = model.detect(make_image(1), "mug")
        push_out(model)
        before = counters(model)["crops_encoded"]
        second = model.detect(make_image(1), "mug")

        assert second == first
        assert counters(model)["crops_encoded"] > before
        assert counters(model)["images_restored"] == 0


def test_tenants_share_nothing() -> None:
    with serve() as model:
        model.detect(make_image(1), "mug", cache_salt="one")
        push_out(model)
        before = counters(model)["crops_encoded"]
        model.detect(make_image(1), "mug", cache_salt="other")

        assert counters(model)["crops_encoded"] > before


def test_an_encoded_image_that_is_kept_by_its_caller_is_restored_too() -> None:
    with serve() as model:
        encoded = model.encode_image(make_image(1))
        push_out(model)
        before = counters(model)
        model.detect(encoded, "mug")
        after = counters(model)

    assert after["crops_encoded"] == before["crops_encoded"]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["2.5", "3-tied"])
def test_images_inside_prompts_come_back_with_the_features_of_later_layers(tmp_path: Any, kind: str) -> None:
    folder = save(reference_model(kind), tmp_path, kind)  # type: ignore[arg-type]
    engine: Any = {"max_context": 500, "page_size": 4}
    asked = [make_image(1, (70, 50)), make_image(2, (50, 70))]
    with photonlite.load(folder, device="cpu", dtype="float32", engine=engine) as model:
        first = model.query(asked, "What is different?", settings={"max_tokens": 12})
        push_out(model)
        before = counters(model)
        second = model.query(asked, "What is different?", settings={"max_tokens": 12})
        after = counters(model)

    assert second == first
    assert (after["crops_encoded"], after["images_restored"]) == (before["crops_encoded"], 2)


@pytest.fixture(scope="module")
def restarts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Ask the shipped checkpoint two questions about an image, each in a model that was loaded anew."""
    folder = tmp_path_factory.mktemp("store")

    def ask(text: str, **options: Any) -> tuple[Any, dict[str, int]]:
        with photonlite.load(device="cpu", **{"store": folder, **options}) as model:
            found = model.detect(make_image(1, (300, 300)), text)
            return found, counters(model)

    return ask


def test_after_a_restart_an_image_is_read_from_the_disk(restarts: Any) -> None:
    first, before = restarts("banana")
    second, after = restarts("banana")

    assert second == first
    assert (before["crops_encoded"] > 0, before["store_loads"]) == (True, 0)
    assert (after["crops_encoded"], after["images_restored"], after["store_loads"]) == (0, 1, 2)


@pytest.mark.long
def test_another_precision_reads_nothing_of_it(restarts: Any) -> None:
    restarts("banana")
    _, other = restarts("banana", dtype="bfloat16")
    _, again = restarts("banana", engine={"embedding_cache_bytes": 0})

    assert (other["store_loads"], other["crops_encoded"] > 0) == (0, True)
    assert (again["store_loads"], again["crops_encoded"]) == (2, 0)


@pytest.mark.long
def test_a_file_with_the_right_key_and_another_shape_is_computed_anew(
    restarts: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = restarts("banana", store=tmp_path)
    tier = DiskTier(tmp_path, 10**9)
    for entry in list(entries(tmp_path)):
        tier.write(entry.path.stem, "", HostTensor(np.zeros(4 * 105, np.uint8), (1, 3, 35), "float32"))
    with caplog.at_level("WARNING", "photonlite"):
        second, counted = restarts("banana", store=tmp_path)

    assert second == first
    assert (counted["store_misses"], counted["images_restored"], counted["crops_encoded"] > 0) == (1, 0, True)
    assert "it has float32 [1, 3, 35], not float32 [" in caplog.text


@pytest.mark.parametrize("store", ["", 3, b"bytes"])
def test_a_store_that_is_no_path_is_refused(store: Any) -> None:
    with pytest.raises(SettingsError, match="store is"):
        photonlite.load(store=store)


def test_a_model_without_files_has_no_store(tmp_path: Any) -> None:
    with pytest.raises(SettingsError, match="loaded from files"):
        serve(store=str(tmp_path))
