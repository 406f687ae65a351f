from matplotlib.figure import Figure
from PIL import Image

from bench.bubble import chart
from bench.bubble.whole_run import Stretch, WholeRun, save_runs

STRETCHES = [Stretch(step, 10, 2e-3, 0.75, 4e-4) for step in (0, 10, 20)]
RUNS = [WholeRun(1, 4, 120, 0.5, 0.75, STRETCHES), WholeRun(2, 4, 120, 0.25, 0.9999, STRETCHES[:2])]


def test_the_command_draws_an_image_of_the_data(tmp_path):
    save_runs(RUNS, "here, today", tmp_path / "runs.json")
    assert chart.main([str(tmp_path / "runs.json"), str(tmp_path / "deep" / "chart.png")]) == 0
    with Image.open(tmp_path / "deep" / "chart.png") as image:
        assert image.size == (1600, 1184)


def test_panels_show_busy_share_idle_time_and_period_of_each_depth(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, dpi: drawn.append(figure))
    chart.draw_runs(RUNS, "here, today", tmp_path / "chart.png")

    busy, idle, period = drawn[0].axes
    assert [line.get_label() for line in busy.lines] == [
        "blocking (depth 1): busy 75.00% of 0.5 s",
        "pipelined (depth 2): busy 99.99% of 0.2 s",
    ]
    assert [list(axes.lines[0].get_xdata()) for axes in (busy, idle, period)] == [[5.0, 15.0, 25.0]] * 3
    assert [axes.lines[0].get_ydata()[0] for axes in (busy, idle, period)] == [75.0, 0.5, 2.0]
    assert busy.get_xlim() == (0, 30)
    assert busy.get_title(loc="left").startswith("4 streams, 30 tokens each")
