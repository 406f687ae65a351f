"""A later question or turn about images inside prompts: keys and values up to the images come from the store."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import photonlite
from photonlite import VisionModel
from photonlite.cache.store.disk import entries
from photonlite.cache.store.policy import TierPolicy
from tests.api.test_stored_images import push_out
from tests.models.qwen.tiny import reference_model, save
from tests.serving import counters, make_image

SYSTEM = "Be brief."
NEXT = [{"role": "assistant", "content": "A mug."}, {"role": "user", "content": "And what else is there?"}]


@pytest.fixture(scope="module", params=["3-tied", pytest.param("2.5", marks=pytest.mark.long)])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(reference_model(request.param), tmp_path_factory.mktemp("qwen"), request.param)


@pytest.fixture(scope="module")
def bare(checkpoint: Path) -> Iterator[VisionModel]:
    """Answer without a store, and without a prefix cache."""
    with load(checkpoint, embedding_cache_bytes=0, prefix_caching=False) as model:
        yield model


@pytest.fixture(autouse=True)
def everything_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of a tiny model on a busy machine decide nothing."""
    monkeypatch.setattr(TierPolicy, "saved", lambda self, kind, tier: math.inf)


def load(checkpoint: Path, store: Path | None = None, **engine: Any) -> VisionModel:
    settings: Any = {"max_context": 500, "page_size": 4} | engine
    return photonlite.load(checkpoint, device="cpu", dtype="float32", store=store, engine=settings)


def asked(*seeds: int, text: str = "What is different?", system: str = SYSTEM) -> list[Any]:
    """Write a conversation: one turn about each image but the last, and a question about that.

    Images have the same size at the same place, so that they take as many positions.
    """
    messages: list[Any] = [{"role": "system", "content": system}]
    for place, seed in enumerate(seeds, 1):
        image = {"type": "image", "image": make_image(seed, (60 + 10 * place, 50))}
        messages.append({"role": "user", "content": [image, text if place == len(seeds) else "Look."]})
        if place < len(seeds):
            messages.append({"role": "assistant", "content": "Yes."})
    return messages


def answer(model: VisionModel, messages: list[Any], **options: Any) -> str:
    return str(model.chat(messages, settings={"max_tokens": 12}, **options)["answer"])


@pytest.mark.parametrize("settings", [{}, {"batching": "mixed", "mixed_tokens": 5}])
def test_later_turns_and_questions_compute_no_image_again(
    checkpoint: Path, bare: VisionModel, settings: dict[str, Any]
) -> None:
    with load(checkpoint, **settings) as model:
        first = asked(1, 2)
        answer(model, first)
        for messages in (first, asked(1, 2, text="Where is the mug?"), [*first, *NEXT], asked(1, 2, 3)):
            push_out(model)
            before = counters(model)
            found = answer(model, messages)
            after = counters(model)

            assert found == answer(bare, messages)
            assert after["pages_restored"] - before["pages_restored"] >= 8, messages
            assert after["images_restored"] - before["images_restored"] == 2
    assert after["crops_encoded"] == before["crops_encoded"] + 1  # the third image


def test_another_process_reads_them_from_the_disk(checkpoint: Path, bare: VisionModel, tmp_path: Path) -> None:
    first = asked(1, 2)
    with load(checkpoint, tmp_path) as model:
        answer(model, first)
        stored = counters(model)
    with load(checkpoint, tmp_path) as model:
        found, second = answer(model, first), answer(model, [*first, *NEXT])
        restored = counters(model)

    assert stored["pages_restored"] == restored["crops_encoded"] == 0
    assert (restored["store_loads"], restored["store_misses"], restored["images_restored"]) == (4, 0, 2)
    assert restored["pages_restored"] >= 8
    assert (found, second) == (answer(bare, first), answer(bare, [*first, *NEXT]))


OTHERS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "other instructions": (asked(1, 2, system="Be quick."), {}),
    "longer instructions": (asked(1, 2, system="Be very brief."), {}),
    "another image": (asked(4, 2), {}),
    "another tenant": (asked(1, 2), {"cache_salt": "other"}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_prefix_takes_no_pages_of_it(checkpoint: Path, bare: VisionModel, tmp_path: Path, name: str) -> None:
    messages, options = OTHERS[name]
    with load(checkpoint, tmp_path) as model:
        answer(model, asked(1, 2))
    with load(checkpoint, tmp_path) as model:
        found = answer(model, messages, **options)
        counted = counters(model)

    assert found == answer(bare, messages)
    assert counted["pages_restored"] == 0


def test_behind_another_stored_image_the_second_takes_no_pages(
    checkpoint: Path, bare: VisionModel, tmp_path: Path
) -> None:
    with load(checkpoint, tmp_path) as model:
        answer(model, asked(1, 2))
        answer(model, asked(3))
    counted = []
    for messages in (asked(3), asked(3, 2)):
        with load(checkpoint, tmp_path) as model:
            assert answer(model, messages) == answer(bare, messages)
            counted.append(counters(model)["pages_restored"])

    assert counted[0] == counted[1] > 0


@pytest.mark.long
@pytest.mark.parametrize("settings", [{"page_size": 8}, {"kv_dtype": "fp8"}])
def test_another_engine_takes_nothing_of_it(checkpoint: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    with load(checkpoint, tmp_path) as model:
        answer(model, asked(1))
    try:
        other = load(checkpoint, tmp_path, **settings)
    except photonlite.SettingsError:
        pytest.skip("this device has no FP8")
    with other as model:
        answer(model, asked(1))
        assert counters(model)["store_loads"] == 0


@pytest.mark.parametrize("damage", [lambda data: data[:-40], lambda data: data[:-1] + bytes([data[-1] ^ 1])])
def test_what_is_truncated_or_damaged_is_computed_anew(
    checkpoint: Path, bare: VisionModel, tmp_path: Path, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with load(checkpoint, tmp_path) as model:
        answer(model, asked(1, 2))
    for entry in entries(tmp_path):
        entry.path.write_bytes(damage(entry.path.read_bytes()))
    with caplog.at_level("WARNING", "photonlite"), load(checkpoint, tmp_path) as model:
        found = answer(model, asked(1, 2))
        counted = counters(model)

    assert found == answer(bare, asked(1, 2))
    assert (counted["store_loads"], counted["pages_restored"]) == (0, 0)
    assert "unusable, and removed" in caplog.text


def test_behind_cached_text_only_what_is_missing_is_written(checkpoint: Path, bare: VisionModel) -> None:
    """Pages of the device's cache are shared: text before the image is still there, and the image is not."""
    with load(checkpoint) as model:
        answer(model, asked(1, text="Where is the mug?"))
        push_out(model)
        answer(model, [asked(1)[0], {"role": "user", "content": "What can you do?"}])
        before = counters(model)
        found = answer(model, asked(1))
        after = counters(model)

    assert found == answer(bare, asked(1))
    assert after["pages_restored"] > before["pages_restored"]
