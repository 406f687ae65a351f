"""PEFT's adapters of transformers' models: answers are those of a checkpoint whose weights have the same changes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import photonlite
from photonlite.errors import AdapterError
from tests.adapters import Matrices, linear_sizes, random_matrices, save_peft
from tests.models.paligemma import tiny as paligemma
from tests.models.qwen import tiny as qwen
from tests.serving import make_image

ALPHA, RANK = 6.0, 3
SCALE = ALPHA / RANK
IMAGES = (make_image(0, (70, 50)), make_image(1, (40, 60)))


def change(model: nn.Module, matrices: Matrices) -> None:
    with torch.no_grad():
        for name, (a, b) in matrices.items():
            model.get_submodule(name).weight += SCALE * b @ a


def asked(model: Any) -> list[str]:
    """Return answers about several images at a time."""
    tasks = [
        {"skill": "query", "image": image, "question": question, "settings": {"max_tokens": 8}}
        for image in IMAGES
        for question in ("What is it?", "mug")
    ]
    return [one["answer"] for one in model(tasks)]


def check(base: Path, changed: Path, adapter: Path, other: Path) -> None:
    """Compare answers of two adapters and none in one batch with those of checkpoints."""
    engine: Any = {"max_context": 700, "page_size": 4}
    with photonlite.load(changed, device="cpu", dtype="float32", engine=engine) as model:
        expected = asked(lambda tasks: model.batch(tasks, errors="raise"))
    with photonlite.load(base, device="cpu", dtype="float32", engine=engine) as model:
        alone = asked(lambda tasks: model.batch(tasks, errors="raise"))
        model.load_adapter(adapter, name="one")
        model.load_adapter(other, name="other")
        mixed: list[Any] = []

        def mix(tasks: list[dict[str, Any]]) -> list[Any]:
            rows = [task | {"adapter": name} for task in tasks for name in ("one", None, "other")]
            mixed.extend(model.batch(rows, errors="raise"))
            return mixed[::3]

        assert asked(mix) == expected
        assert [one["answer"] for one in mixed[1::3]] == alone
        assert alone != expected != [one["answer"] for one in mixed[2::3]]


def sizes_of(model: nn.Module) -> dict[str, tuple[int, int]]:
    found = linear_sizes(model, ("model.",))
    return {name: size for name, size in found.items() if "lm_head" not in name}


@pytest.mark.long
@pytest.mark.parametrize("case", ["2.5", "3"])
def test_adapters_of_qwen(tmp_path: Path, case: str) -> None:
    model = qwen.reference_model(case)
    base = qwen.save(model, tmp_path / "base", case)
    sizes = sizes_of(model)
    assert any(".q_proj" in name for name in sizes)
    assert any("merger" in name for name in sizes)
    matrices = random_matrices(sizes, RANK, 1, 0.3)
    adapter = save_peft(tmp_path / "one", matrices, ALPHA)
    other = save_peft(tmp_path / "other", random_matrices(sizes, 2, 2, 0.3), ALPHA)
    change(model, matrices)
    check(base, qwen.save(model, tmp_path / "changed", case), adapter, other)


@pytest.mark.long
def test_adapters_of_paligemma(tmp_path: Path) -> None:
    model = paligemma.reference_model("capped")
    base = paligemma.save(model, tmp_path / "base")
    matrices = random_matrices(sizes_of(model), RANK, 1, 0.3)
    adapter = save_peft(tmp_path / "one", matrices, ALPHA)
    other = save_peft(tmp_path / "other", random_matrices(sizes_of(model), 2, 2, 0.3), ALPHA)
    change(model, matrices)
    check(base, paligemma.save(model, tmp_path / "changed"), adapter, other)


@pytest.mark.long
def test_older_names_of_qwen_are_read_and_what_is_no_linear_layer_is_not(tmp_path: Path) -> None:
    base = qwen.save(qwen.reference_model("2.5"), tmp_path / "base", "2.5")
    with photonlite.load(base, device="cpu", dtype="float32", engine={"max_context": 500}) as model:
        dim = model._session.engine._model.shape.dim
        text = model._session.engine._model.config.text
        sizes = {"model.layers.0.self_attn.v_proj": (dim, text.kv_heads * text.head_dim)}
        loaded = model.load_adapter(save_peft(tmp_path / "older", random_matrices(sizes, 2, 0)))
        assert loaded.rank == 2
        for name in ("model.language_model.norm", "model.language_model.embed_tokens", "visual.patch_embed.proj"):
            with pytest.raises(AdapterError, match=r"is no linear layer|was made for another model"):
                model.load_adapter(save_peft(tmp_path / "no", random_matrices({name: (dim, dim)}, 2, 0)))
        bare = tmp_path / "older" / "adapter_config.json"
        bare.unlink()
        with pytest.raises(AdapterError, match=r"no adapter_config\.json beside it"):
            model.load_adapter(tmp_path / "older" / "adapter_model.safetensors", name="bare")
