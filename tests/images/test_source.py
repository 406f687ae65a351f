from pathlib import Path

import pytest

from photonlite.images.source import is_url


@pytest.mark.parametrize("text", ["https://a.example/b", "HTTP://a.example/b", "https://"])
def test_urls_are_recognized(text: str) -> None:
    assert is_url(text)


@pytest.mark.parametrize(
    "source", ["a.png", "ftp://a", "/https://a", "data:image/png;base64,", Path("https://a"), b"https://a"]
)
def test_other_sources_are_no_urls(source: object) -> None:
    assert not is_url(source)
