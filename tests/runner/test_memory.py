import re
from dataclasses import replace

import pytest
import torch

from photonlite.cache.manager import CacheManager
from photonlite.cache.pages import PagePool
from photonlite.errors import CapacityError
from photonlite.models.base import ModelShape
from photonlite.runner.memory import (
    WORKSPACE_BYTES,
    DeviceMemory,
    MemoryPart,
    bytes_of_page,
    cpu_cache_bytes,
    estimate_graph_bytes,
    longest_pages,
    measure_activations,
    plan_memory,
)
from tests.cache.sequences import sequence

MOONDREAM = ModelShape(24, 32, 64, 2048, 730, 0, 2048, 51200)
PAGE = 2 * 24 * 16 * 32 * 64 * 2  # 3 MiB in bfloat16
GIB = 2**30


def on_card(free: int, activation_bytes: int = 2 * GIB, graph_bytes: int = GIB // 2, staging_bytes: int = 0) -> int:
    memory = DeviceMemory(total=139 * GIB, free=free, fraction=0.9, weights=4 * GIB)
    plan = plan_memory(
        MOONDREAM,
        torch.bfloat16,
        page_size=16,
        max_rows=64,
        memory=memory,
        activation_bytes=activation_bytes,
        graph_bytes=graph_bytes,
        staging_bytes=staging_bytes,
    )
    assert plan.kv_bytes == plan.pages * PAGE
    sizes = {part.what: part.bytes for part in plan.parts}
    left = sizes.pop("may be used") - sum(sizes.values())
    assert 0 <= left < PAGE  # what is no whole page
    return plan.pages


def test_a_card_gives_the_cache_what_everything_else_leaves() -> None:
    # 139 x 0.9 = 125.1; less 5 in use, 2 of activations, 0.5 of workspaces and 0.5 of graphs: 117.1 GiB.
    assert on_card(free=134 * GIB) == int(117.1 * GIB) // PAGE
    assert on_card(free=133 * GIB) == int(116.1 * GIB) // PAGE
    assert on_card(free=134 * GIB, activation_bytes=3 * GIB) == int(116.1 * GIB) // PAGE
    assert on_card(free=134 * GIB, staging_bytes=GIB) == int(116.1 * GIB) // PAGE
    assert on_card(free=134 * GIB, graph_bytes=0) == int(117.6 * GIB) // PAGE


def test_the_plan_is_a_table_of_all_that_is_taken() -> None:
    card = DeviceMemory(total=24 * GIB, free=19 * GIB, fraction=0.9, weights=4 * GIB)
    plan = plan_memory(MOONDREAM, torch.bfloat16, page_size=16, max_rows=4, memory=card, activation_bytes=2 * GIB)
    host = MemoryPart("decoded images", "host", 2**30, "that may wait")

    lines = str(replace(plan, parts=(*plan.parts, host))).splitlines()

    assert [line.split("  ")[0] for line in lines] == ["device"] * 8 + ["host"]
    assert "weights            4.00 GiB" in lines[1]
    assert "others             1.00 GiB  the CUDA context" in lines[2]
    assert f"{plan.pages} pages of 16 positions; one longest request, 2048 positions, takes 129" in lines[7]
    assert lines[8] == "host    decoded images     1.00 GiB  that may wait"


def test_without_a_card_the_plan_has_weights_and_cache() -> None:
    plan = plan_memory(MOONDREAM, torch.bfloat16, page_size=16, max_rows=4, kv_cache_bytes=200 * PAGE, weight_bytes=123)
    assert [(part.what, part.bytes) for part in plan.parts] == [("weights", 123), ("keys and values", 200 * PAGE)]


def test_a_card_without_room_for_one_request_is_refused_with_the_arithmetic() -> None:
    enough = 13.9 * GIB + 3 * GIB + 130 * PAGE  # one longest request and the scratch page
    assert on_card(free=int(enough) + PAGE // 2) == 130

    with pytest.raises(CapacityError) as refusal:
        on_card(free=int(enough) - PAGE // 2)

    message = str(refusal.value)
    for part in (
        "of 139.00 GiB on the card 0.9 may be used, 125.10 GiB",
        "121.72 GiB are in use already (4.00 GiB of them by the weights)",
        "the largest launch takes 2.00 GiB, workspaces 512.00 MiB, graphs 512.00 MiB, staging 0 bytes",
        "388.50 MiB are left",
        "a page of 16 positions takes 3.00 MiB, so there is room for 129 pages",
        "2048 positions need 129, the copy of an image's last page included",
        "and one page is kept for padding: 390.00 MiB in all",
        "raise gpu_memory_fraction",
        "max_batch (now 64)",
    ):
        assert part in message


def test_a_full_card_has_room_for_no_pages_rather_than_fewer() -> None:
    with pytest.raises(CapacityError, match="room for 0 pages"):
        on_card(free=GIB)


def test_a_cache_size_in_bytes_holds_whatever_the_card_has() -> None:
    def pages(size: int) -> int:
        return plan_memory(MOONDREAM, torch.bfloat16, page_size=16, max_rows=4, kv_cache_bytes=size).pages

    assert pages(200 * PAGE + 5) == 200
    with pytest.raises(CapacityError, match=re.escape(f"set kv_cache_bytes to {130 * PAGE} or more")):
        pages(130 * PAGE - 1)


def test_fp8_makes_twice_as_many_pages_of_the_same_memory_as_bfloat16() -> None:
    def pages(dtype: torch.dtype, size: int = 400 * PAGE) -> int:
        return plan_memory(MOONDREAM, dtype, page_size=16, max_rows=4, kv_cache_bytes=size).pages

    assert (pages(torch.bfloat16), pages(torch.float8_e4m3fn)) == (400, 800)
    with pytest.raises(CapacityError, match="kv_dtype='fp8' makes pages 2 times smaller"):
        pages(torch.bfloat16, 100 * PAGE)
    assert pages(torch.float8_e4m3fn, 100 * PAGE) == 200
    with pytest.raises(CapacityError) as refusal:
        pages(torch.float8_e4m3fn, PAGE)
    assert "kv_dtype" not in str(refusal.value)


def test_something_must_say_how_much_there_is() -> None:
    with pytest.raises(ValueError, match="kv_cache_bytes or the memory"):
        plan_memory(MOONDREAM, torch.bfloat16, page_size=16, max_rows=4)


@pytest.mark.parametrize("page_size", [1, 2, 5, 16, 64])
@pytest.mark.parametrize("image", [True, False])
def test_what_is_accepted_at_start_runs_the_longest_request(page_size: int, image: bool) -> None:
    size = (longest_pages(MOONDREAM, page_size) + 1) * bytes_of_page(MOONDREAM, torch.bfloat16, page_size)
    plan = plan_memory(MOONDREAM, torch.bfloat16, page_size=page_size, max_rows=1, kv_cache_bytes=size)
    cache = CacheManager(PagePool(plan.pages, page_size))

    before = MOONDREAM.prefix_length if image else 1
    longest = sequence((1,), "a" if image else None, prefix=before, budget=MOONDREAM.max_context - before)
    assert longest.longest == MOONDREAM.max_context
    assert cache.fits(longest)


def test_the_cpu_has_room_for_the_whole_batch_within_a_quarter_of_its_memory() -> None:
    def pages(physical: int, max_rows: int = 4) -> float:
        return cpu_cache_bytes(MOONDREAM, torch.float32, page_size=16, max_rows=max_rows, physical=physical) / PAGE / 2

    assert pages(64 * GIB) == 4 * 129 + 1
    assert pages(8 * GIB) == 2 * GIB // PAGE // 2  # 341 pages of 6 MiB
    assert pages(GIB) == 130


def test_the_memory_of_this_machine_is_asked_for() -> None:
    size = cpu_cache_bytes(MOONDREAM, torch.float32, page_size=16, max_rows=1)
    assert size == 130 * 2 * PAGE


def test_more_graphs_take_more_memory() -> None:
    assert estimate_graph_bytes(9, 2, 4) == 2 * estimate_graph_bytes(9, 1, 4) > estimate_graph_bytes(1, 1, 4) > 0
    assert estimate_graph_bytes(0, 2, 4) == 0
    assert WORKSPACE_BYTES > 0


class Greedy:
    """Takes 1 MiB a page, and 3 MiB while it rehearses."""

    def __init__(self, pages: int, device: torch.device) -> None:
        self._device = device
        self._held = torch.empty(pages * 2**20, dtype=torch.uint8, device=device)

    def rehearse(self, positions: int, images: int) -> None:
        torch.empty(3 * 2**20, dtype=torch.uint8, device=self._device)

    def close(self) -> None:
        del self._held


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="the peak is read from CUDA's allocator")
def test_the_peak_of_a_rehearsal_is_measured() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    before = torch.cuda.memory_allocated(device)

    assert measure_activations(lambda pages: Greedy(pages, device), device, 100, 2) == 4 * 2**20
    assert torch.cuda.memory_allocated(device) == before
