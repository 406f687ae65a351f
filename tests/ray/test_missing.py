import sys

import pytest

import photonlite.ray
from photonlite.errors import MissingDependencyError


@pytest.mark.parametrize("name", ["app", "build"])
def test_without_ray_the_error_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("photonlite.ray.service", "photonlite.ray.router"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(MissingDependencyError, match=r"'ray', .* pip install 'photonlite\[ray\]'"):
        getattr(photonlite.ray, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'bild'"):
        photonlite.ray.bild  # noqa: B018
