"""Which cards run which fused kernels: compute capability and shared memory of cards, against what kernels need.

Sizes hold for numbers of 16 bits. `tests/kernels/compiled.py` compiles the kernels for every capability in the table,
which takes no card, and compares.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from photonlite.kernels.decode_attention import attention_config
from photonlite.kernels.decode_attention import shared_bytes as step_bytes
from photonlite.kernels.fp8 import CAPABILITY as FP8_CAPABILITY
from photonlite.kernels.prefill_attention import prefill_config
from photonlite.kernels.prefill_attention import shared_bytes as prompt_bytes
from photonlite.kernels.small_batch_gemm import MAX_ROWS
from photonlite.kernels.tilings import least_shared
from photonlite.kernels.triton_utils import HAS_TRITON, LEAST_CAPABILITY

HALF = (torch.bfloat16, torch.float16)
ROW_BYTES = 16_384  # of shared memory, at most, in kernels that hold rows in registers: norms, rotary, activations


@dataclass(frozen=True, slots=True)
class Card:
    """A card, or a kind of cards."""

    name: str
    capability: tuple[int, int]
    shared: int  # bytes of shared memory that a program may use


CARDS = (
    Card("T4", (7, 5), 65_536),
    Card("A100", (8, 0), 166_912),
    Card("RTX 3090", (8, 6), 101_376),
    Card("Jetson Orin", (8, 7), 166_912),
    Card("RTX 4090", (8, 9), 101_376),
    Card("L4", (8, 9), 101_376),
    Card("H100 and H200", (9, 0), 232_448),
)
"""Cards by their maker's documentation; only an H200 has been measured."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a kernel needs."""

    kernel: str
    shared: int = ROW_BYTES
    capability: tuple[int, int] = LEAST_CAPABILITY


def encoder_needs() -> list[Need]:
    """Return what an image encoder's kernels need."""
    return [Need("norms")]


def prompt_needs(head_dim: int, group: int) -> list[Need]:
    """Return what prompts need, for heads of a size of which `group` share keys and values."""
    attention = prompt_bytes(prefill_config(head_dim, 2, group), head_dim)
    return [Need("norms"), Need("rotary"), Need("prefill_attention", attention)]


def step_needs(head_dim: int, group: int) -> list[Need]:
    """Return what decode steps need, for heads of a size of which `group` share keys and values."""
    configs = (attention_config(rows, 8, 4096, dim=head_dim, group=group) for rows in (1, 8, 64))
    attention = max(step_bytes(config, head_dim) for config in configs if config.dot)
    return [Need("small_batch_gemm", least_shared(MAX_ROWS)), Need("decode_attention", attention)]


def fp8_needs(kernel: str) -> list[Need]:
    """Return what a kernel that multiplies e4m3 needs."""
    return [Need(kernel, 0, FP8_CAPABILITY)]


@functools.cache
def card_of(device: torch.device) -> Card | None:
    """Return the card that a device is; None for a CPU."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    shared = int(properties.shared_memory_per_block_optin)  # type: ignore[attr-defined]  # missing from the stubs
    return Card(properties.name, (properties.major, properties.minor), shared)


def wrong_type(dtype: torch.dtype, dtypes: Sequence[torch.dtype]) -> str | None:
    """Return the objection to weights of a type that kernels do not take."""
    if dtype in dtypes:
        return None
    taken, given = (", ".join(str(one).removeprefix("torch.") for one in types) for types in (dtypes, [dtype]))
    return f"kernels take weights in {taken}, these are in {given}"


def obstacle(card: Card | None, needs: Sequence[Need]) -> str | None:
    """Return what keeps kernels from running on a card, the first of them by name; None if all can run."""
    if card is None:
        return "kernels need a CUDA device"
    if not HAS_TRITON:
        return "kernels need Triton, which is not installed"
    for need in needs:
        if card.capability < need.capability:
            least, has = (".".join(map(str, version)) for version in (need.capability, card.capability))
            return f"the kernel {need.kernel} needs compute capability {least}, {card.name} has {has}"
        if card.shared < need.shared:
            return (
                f"the kernel {need.kernel} needs {need.shared} bytes of shared memory, {card.name} has {card.shared}"
            )  # fmt: skip
    return None
