import re

import pytest

from bench.bubble.report import Writer, table
from tests.bubble.small import comparison


def made_up():
    return [
        comparison(t_block=3e-3, t_pipe=2.5e-3),
        comparison(t_block=3.2e-3, t_pipe=2.6e-3, workload="detect"),
        comparison(t_block=6e-3, t_pipe=4e-3, streams=32),
        comparison(t_block=6e-3, t_pipe=4.4e-3, streams=32, workload="detect"),
    ]


def cells(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]


def test_tables_are_aligned():
    text = table(["name", "value"], [["a", "1.5"], ["longer name", "12"]])
    assert text.splitlines() == [
        "| name        | value |",
        "|-------------|------:|",
        "| a           |   1.5 |",
        "| longer name |    12 |",
    ]


def test_the_first_table_gives_periods_in_milliseconds_on_a_card():
    _, _, *rows = cells(Writer("H", absolute=True).speed(made_up()))
    assert rows[0] == ["H", "text", "1", "3.000", "2.500", "+20.0%"]


def test_the_second_table_holds_prediction_and_observation():
    head, _, *rows = cells(Writer("H", absolute=True).parts(made_up()))
    row = dict(zip(head, rows[0], strict=True))
    assert row["forward (ms)"] == "2.250"
    assert (row["L"], row["z"]) == ("100.0", "1.00%")
    assert (row["prediction"], row["observation"]) == ("+18.8%", "+18.8%")
    assert row["difference (points)"] in ("+0.0", "-0.0")
    assert row["to the last token"] == "+20.0%"


def test_times_of_a_cpu_are_shares_of_the_blocking_period():
    writer = Writer("CPU", absolute=False)
    found = made_up()
    _, _, *rows = cells(writer.speed(found))
    assert rows[0] == ["CPU", "text", "1", "1.000", "0.833", "+20.0%"]
    for text in (writer.speed, writer.parts, writer.depths, writer.host, writer.aims):
        assert not re.search(r"\b(ms|us)\b", text(found))
    assert not re.search(r"\b(ms|us)\b", writer.line(found[0]))


def test_aims_tell_what_was_reached_and_what_was_missed():
    rows = {row[0]: row[1:] for row in cells(Writer("H", absolute=True).aims(made_up()))}
    assert rows["text, 1 stream: device idle per period at most 20 us"] == ["10.0 us", "reached"]
    assert rows["text, 32 streams: device busy at least 99.4%"] == ["99.75%", "reached"]
    assert rows["text, 32 streams: prediction and observation within 2 points"][1] == "reached"
    assert rows["detect, 1 stream: period at most 5% above that of text"] == ["+4.0%", "reached"]
    assert rows["detect, 32 streams: period at most 5% above that of text"] == ["+10.0%", "MISSED"]


@pytest.mark.parametrize(("streams", "least"), [(1, 0.4), (32, 1.2)])
def test_the_aim_for_the_host_depends_on_the_streams(streams, least):
    text = Writer("H", absolute=True).aims([comparison(t_block=6e-3, t_pipe=4e-3, streams=streams)])
    assert f"host tick at most {least} ms" in text
