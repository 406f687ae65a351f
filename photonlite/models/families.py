"""The families of models, by the `model_type` of a checkpoint's config.json.

A family is a folder beside this file; its module `checkpoint` has the functions of `Family`. Nothing else in photonlite
names a family.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from photonlite.errors import ConfigError
from photonlite.grammar.prompts import Prompts
from photonlite.models.precisions import Precisions

if TYPE_CHECKING:  # the command line lists families without torch, which takes seconds to import
    import torch
    from PIL import Image

    from photonlite.config import Precision
    from photonlite.device.collectives import RankGroup
    from photonlite.models.adapters.terms import AdapterPlace, AdapterTerm
    from photonlite.models.base import Model
    from photonlite.request import Token


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How a model is loaded."""

    device: torch.device | str
    dtype: torch.dtype  # of what is not quantised
    max_context: int | None = None  # shortens its context; None leaves the length to the family
    # With these only a rank's share of the decoder is read, and the image encoder on rank 0 alone.
    ranks: RankGroup | None = None
    precisions: Precisions = field(default_factory=Precisions)  # of its linear layers


class Family(Protocol):
    """What a family's module `checkpoint` does; each family has a configuration of its own type."""

    def read_config(self, folder: Path, raw: Mapping[str, Any]) -> Any:
        """Return the configuration in a folder's config.json, whose content is `raw`; ConfigError if it is invalid."""

    def find_tokenizer(self, folder: Path, config: Any) -> Path:
        """Return the tokenizer.json of a checkpoint, fetched where another one is needed; CheckpointError if none."""

    def skills_of(self, config: Any) -> tuple[str, ...]:
        """Return what a checkpoint can do, from its configuration."""

    def rank_sizes(self, config: Any) -> Mapping[str, int]:
        """Return the sizes that ranks of tensor parallelism divide, by names of config.json; none if it cannot be."""

    def outline(self, config: Any, weights: Sequence[Path], ranks: RankGroup | None = None) -> Model:
        """Return a model without values whose layers are as the files hold them, or a rank's share: for its sizes."""

    def text_precisions(self, config: Any, weights: Sequence[Path]) -> Sequence[Precision | None]:
        """Return what the decoder can be loaded in, best first; None for what the files hold.

        They are not in photonlite's own form.
        """

    def load(
        self, config: Any, tokenizer: Path, weights: Sequence[Path], options: LoadOptions
    ) -> tuple[Model, Prompts]:
        """Load a model in evaluation mode, and what writes its prompts; CheckpointError for unusable files."""

    def adapter_place(self, model: Any, module: str) -> AdapterPlace | None:
        """Return where the layer of a public name is in a loaded model; None for one that takes no adapter."""

    def read_variant(self, model: Any, tensors: Mapping[str, torch.Tensor], source: str) -> list[AdapterTerm]:
        """Return the terms of an adapter in the makers' own format; AdapterError where it is not in one."""


class Oracle(Protocol):
    """Another implementation of a checkpoint beside this one; each method returns what both compute, ours first."""

    @property
    def name(self) -> str: ...
    def preprocessing(self, image: Image.Image) -> tuple[torch.Tensor, torch.Tensor]: ...
    def features(self, images: Sequence[Image.Image]) -> tuple[torch.Tensor, torch.Tensor]: ...
    def logits(
        self, prompt: Sequence[Token], images: Sequence[Image.Image], answer: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits from which each id of an answer was chosen, ``[steps, vocab]``.

        There is at least one step, and fewer than ids where one of these stands for an image.
        """


@dataclass(frozen=True)
class FamilyEntry:
    """A family in the table below."""

    title: str
    model_types: tuple[str, ...]
    skills: tuple[str, ...]  # of its public checkpoints
    divisible: str | None = None  # those that tensor parallelism can divide
    known: Mapping[str, str] = field(default_factory=dict)  # Hub ids that were tested, with a description


FAMILIES = {
    "moondream": FamilyEntry(
        title="Moondream 2 and 3, and the shipped checkpoint",
        model_types=("moondream2", "moondream", "moondream1", "moondream3", "photonlite_nano"),
        skills=("caption", "query", "detect", "point", "segment"),
        divisible="Moondream 2 and the shipped checkpoint",
        known={"vikhyatk/moondream2": "Moondream 2: detect, point, caption, query; 1.9 B parameters"},
    ),
    "qwen": FamilyEntry(
        title="Qwen3-VL and Qwen2.5-VL",
        model_types=("qwen3_vl", "qwen2_5_vl"),
        skills=("caption", "query", "detect", "point"),
        divisible="Qwen3-VL and Qwen2.5-VL",
    ),
    "paligemma": FamilyEntry(
        title="PaliGemma 2",
        model_types=("paligemma",),
        skills=("caption", "query", "detect", "segment"),
    ),
}
"""Families by the name of their folder."""

KNOWN_MODELS = {name: text for entry in FAMILIES.values() for name, text in entry.known.items()}
"""Hub ids that were tested, with a description."""

_UNNAMED = "moondream"  # early releases of this family alone have no model_type


def family_of(raw: Mapping[str, Any]) -> Family:
    """Return the family of a config.json; ConfigError, which names the known types, where there is none."""
    inner = raw.get("config")
    kind = (inner.get("model_type") if isinstance(inner, Mapping) else None) or raw.get("model_type")
    names = [name for name, entry in FAMILIES.items() if kind in entry.model_types] if kind else [_UNNAMED]
    if not names:
        known = ", ".join(kind for entry in FAMILIES.values() for kind in entry.model_types)
        raise ConfigError(f"model_type {str(kind)!r:.60} is of no family that photonlite knows; it knows {known}")
    # Imported by name when it is needed: a family may bring slow imports, which others must not wait for.
    return cast(Family, importlib.import_module(f"photonlite.models.{names[0]}.checkpoint"))


def oracle_of(family: Family, weights: Sequence[Path], model: Model) -> Oracle | None:
    """Load another implementation of the files that a model was loaded from; None where the family has none.

    Raises a CheckpointError for files that the other implementation cannot load, and a CapacityError where the device
    has no room for both.
    """
    name = f"{family.__name__.rpartition('.')[0]}.oracle"  # type: ignore[attr-defined]
    if importlib.util.find_spec(name) is None:
        return None
    oracle: Oracle = importlib.import_module(name).load(weights, model)
    return oracle
