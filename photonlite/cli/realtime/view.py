"""The live view in a terminal: a drawing of the frame, and the loop's statistics."""

from collections import deque
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from photonlite.cli.realtime.canvas import draw_canvas, items_of
from photonlite.errors import ImageError
from photonlite.observe.metrics import format_seconds
from photonlite.realtime.frames import FrameFailure, FrameOutcome, FrameResult, Question
from photonlite.realtime.state import LoopStats
from photonlite.results.drawing.style import open_image

_FIGURES = 40  # columns of the figures
_NARROWEST = 20  # columns of a drawing beside the figures; narrower terminals get it above them
_MARGINS = 8
_BARS = "▁▂▃▄▅▆▇█"


class View:
    """Redraws itself in place; the title names the model, `rate` is the source's frames per second if known."""

    period_s = 0.2  # on a small machine, drawing takes time from the model

    def __init__(self, question: Question, model: Any, rate: float | None, console: Console | None = None) -> None:
        self._question = question
        self._model = f"{model.name} on {model.device}"
        self._rate = rate
        self._console = console or Console()
        self._result: FrameResult | None = None
        self._failure: FrameFailure | None = None
        self._drawn: tuple[int, int, int] | None = None
        self._canvas = Text()
        self._latencies: deque[tuple[float, bool]] = deque(maxlen=_FIGURES - 2)
        self._live = Live(console=self._console, auto_refresh=False, transient=False)
        self._live.start()

    def add_outcome(self, outcome: FrameOutcome) -> None:
        if isinstance(outcome, FrameResult):
            self._result, self._failure = outcome, None
            self._latencies.append((outcome.latency_s, outcome.met_deadline))
        else:
            self._failure = outcome

    def update(self, stats: LoopStats) -> None:
        self._live.update(self.render(stats), refresh=True)

    def close(self, stats: LoopStats) -> None:
        self._live.update(self.render(stats, running=False), refresh=True)
        self._live.stop()

    def render(self, stats: LoopStats, *, running: bool = True) -> RenderableType:
        beside = self._console.width >= _NARROWEST + _FIGURES + _MARGINS
        room = self._console.width - _MARGINS - (_FIGURES if beside else 0)
        rows = self._console.height - 6 - (0 if beside else 16)
        drawing = self._drawing(max(1, min(room, 72)), max(6, min(rows, 24)))
        figures = Group(_times(stats), self._table(stats, running=running), Text(), *self._spark(), *self._words())
        body: RenderableType = Group(drawing, figures)
        if beside:
            body = Table.grid(padding=(0, 3))
            body.add_column(no_wrap=True)
            body.add_column(max_width=_FIGURES)
            body.add_row(drawing, figures)
        hint = "Ctrl+C to stop" if running else f"ended after {stats.elapsed_s:.1f} s"
        return Panel(body, title=self._title(), subtitle=Text(hint, "dim"), expand=False, padding=(0, 1))

    def _title(self) -> Text:
        subject = self._question.arguments.get("object") or self._question.arguments.get("question")
        subjects = [subject] if isinstance(subject, str) else subject or ()
        named = "".join(f"“{one}” " for one in subjects)
        return Text.assemble((self._question.task, "bold"), " ", (named, "bold yellow"), (f"· {self._model}", "dim"))

    def _drawing(self, columns: int, rows: int) -> RenderableType:
        if self._result is None:
            return Text("waiting for the first result ...", "dim")
        drawn = self._result.number, columns, rows
        if self._drawn != drawn:
            self._drawn = drawn
            try:
                self._canvas = draw_canvas(open_image(self._result.image), self._result.result, columns, rows)
            except ImageError:  # the file has changed
                self._canvas = Text("the frame is gone", "dim")
        return self._canvas

    def _table(self, stats: LoopStats, *, running: bool) -> Table:
        rate = stats.rate if running else stats.mean_rate
        offered = "" if self._rate is None else f" of {self._rate:.3g} offered"
        table = _grid()
        table.add_row("results", Text.assemble((f"{rate:.1f}/s", "bold"), offered))
        table.add_row("jitter", format_seconds(stats.jitter_s))
        table.add_row("frames", f"{stats.submitted:,}")
        table.add_row("answered", _share(stats.answered, stats))
        for cause, count in stats.dropped.items():
            if count:
                table.add_row("dropped", _share(count, stats, "yellow").append(f" {cause}", "yellow"))
        if self._question.deadline_s is not None:
            limit = format_seconds(self._question.deadline_s)
            missed = _share(stats.missed, stats, "red" if stats.missed else "green")
            table.add_row("missed", missed.append(f" over {limit}", "dim"))
        for name, count in stats.failures.items():
            table.add_row("failed", _share(count, stats, "red").append(f" {name}", "red"))
        return table

    def _spark(self) -> list[RenderableType]:
        if not self._latencies:
            return []
        largest = max(latency for latency, _ in self._latencies)
        bars = Text()
        for latency, in_time in self._latencies:
            height = min(len(_BARS) - 1, int(len(_BARS) * latency / largest)) if largest > 0 else 0
            bars.append(_BARS[height], "cyan" if in_time else "red")
        return [bars, Text(f"latest latencies, up to {format_seconds(largest)}", "dim")]

    def _words(self) -> list[RenderableType]:
        if self._failure is not None:
            return [Text(), Text(f"frame {self._failure.number}: {self._failure.error}", "red")]
        if self._result is None:
            return []
        result = self._result.result
        words = str(result.get("answer") or result.get("caption") or f"{len(items_of(result))} found")
        return [Text(), Text(words, "bold")]


def _grid() -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(style="dim", min_width=9)
    return table


def _times(stats: LoopStats) -> Table:
    table = _grid()
    names = ("p50", "p95", "p99")
    table.add_row("", *(Text(name, "dim") for name in names))
    for title, percentiles in (("latency", stats.latency), ("age", stats.age)):
        table.add_row(title, *(f"{format_seconds(getattr(percentiles, name)):>8}" for name in names))
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _share(count: int, stats: LoopStats, style: str = "") -> Text:
    share = f"{count / stats.submitted:.1%}" if stats.submitted else "-"
    return Text.assemble((f"{count:,}", style), (f"  {share}", "dim"))
