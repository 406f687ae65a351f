import threading

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from photonlite.cache.store.memory import MemoryTier
from photonlite.image_inputs import HostTensor


def embeddings(size: int) -> HostTensor:
    return HostTensor(np.zeros(size, np.uint8), (1, 1, size), "uint8")


@given(steps=st.lists(st.tuples(st.sampled_from(["get", "put"]), st.integers(0, 5), st.integers(1, 60)), max_size=40))
def test_it_is_a_least_recently_used_list_by_bytes(steps: list[tuple[str, int, int]]) -> None:
    tier, model = MemoryTier(100), dict[str, HostTensor]()
    for step, number, size in steps:
        key = str(number)
        if step == "get":
            assert tier.get(key) is model.get(key)
            if key in model:
                model[key] = model.pop(key)
            continue
        model.pop(key, None)
        model[key] = embeddings(size)
        tier.put(key, model[key])
        while sum(one.data.nbytes for one in model.values()) > 100:
            del model[next(iter(model))]

        assert (tier.bytes, len(tier)) == (sum(one.data.nbytes for one in model.values()), len(model))


def test_what_saves_less_time_a_byte_goes_first_but_not_when_the_rest_is_old() -> None:
    tier = MemoryTier(100)
    tier.put("embeddings", embeddings(10), 1.0)
    for number in range(5):
        tier.put(f"pages {number}", embeddings(40), 0.3)

    assert tier.get("embeddings") is not None
    assert tier.get("pages 4") is not None
    assert tier.get("pages 2") is None
    for number in range(20):  # for which nobody asks: the rank of what goes has passed it
        tier.put(f"more {number}", embeddings(40), 0.3)
    assert tier.get("embeddings") is None


def test_what_is_larger_than_the_tier_is_not_kept_and_evicts_nothing() -> None:
    tier = MemoryTier(100)
    tier.put("small", embeddings(60))

    tier.put("large", embeddings(101))

    assert tier.get("large") is None
    assert tier.get("small") is not None
    assert tier.evictions == 0


def test_threads_share_it() -> None:
    tier = MemoryTier(1000)

    def use(seed: int) -> None:
        for number in range(300):
            tier.put(str((seed * number) % 17), embeddings(1 + number % 90))
            tier.get(str(number % 17))

    threads = [threading.Thread(target=use, args=(seed,)) for seed in (3, 5, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert tier.bytes == sum(entry[2].data.nbytes for entry in tier._entries.values()) <= 1000
