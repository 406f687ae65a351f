import pytest

from bench.reference import _read, ask
from tests.tiny import CPU


@pytest.mark.long
def test_a_reference_that_cannot_be_loaded_says_why(tmp_path):
    package = tmp_path / "moondream" / "torch"
    package.mkdir(parents=True)
    (package / "moondream.py").write_text("raise ImportError('pyvips is not here')\n")
    with pytest.raises(RuntimeError, match="pyvips is not here"):
        ask(tmp_path, CPU, ["decode"], tiny=True, patience_s=60)


def test_patience_has_an_end(tmp_path):
    found = ask(tmp_path, CPU, ["decode"], tiny=True, patience_s=0.0)
    assert found.medians == {}
    assert found.failures == {"the rest": "ended after 0 s"}


def test_what_was_measured_before_the_end_is_kept():
    text = 'noise\n{"name": "decode", "seconds": 0.5}\n{broken\n{"name": "detect", "error": "no"}\n{"name": "ans'
    assert list(_read(text)) == [{"name": "decode", "seconds": 0.5}, {"name": "detect", "error": "no"}]
