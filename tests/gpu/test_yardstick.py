import pytest

from bench.gpu import yardstick


def test_each_product_is_right_and_timed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(yardstick, "PRODUCTS", {"into a block": (256, 96), "out of it": (128, 64)})
    monkeypatch.setattr(yardstick, "QKV", 64)
    monkeypatch.setattr(yardstick, "BLOCKS", 2)
    assert yardstick.main(["--device", "cpu"]) == 0
    rows = [line.split("|")[1:3] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert [name.strip() for name, _ in rows] == [
        f"{product}, {precision}, rows: {count}"
        for product in ("into a block", "out of it")
        for precision in ("fp8", "int4")
        for count in (1, 8, 32)
    ]
    assert all(float(microseconds) > 0 for _, microseconds in rows)


def test_a_wrong_product_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yardstick, "PRODUCTS", {"out of it": (128, 64)})
    monkeypatch.setattr(yardstick, "ours", lambda weight, bias, split: lambda x: x.new_ones(len(x), len(bias)))
    with pytest.raises(AssertionError, match="the product is wrong"):
        yardstick.main(["--device", "cpu", "--products", "out of it"])
