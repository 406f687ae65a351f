import dataclasses
import re

import pytest

from bench.bubble.report import Writer, published, table
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
    assert rows[0] == ["H", "text", "1", "3.000", "3.000 to 3.000", "2.500", "2.500 to 2.500", "+20.0%"]


def test_the_second_table_holds_zombies_predictions_and_the_observation():
    first, second = Writer("H", absolute=True).model(made_up()).split("\n\n")
    head, _, *rows = cells(first)
    one, batch = (dict(zip(head, row, strict=True)) for row in (rows[0], rows[2]))
    assert (one["L"], one["z, streams"], one["z, batch"], one["z, measured"]) == ("100.0", "1.00%", "1.00%", "1.00%")
    assert (one["predicted, streams"], one["predicted, batch"], one["observed"]) == ("+18.8%",) * 3
    assert one["to the last token"] == "+20.0%"
    # (4 - 2.5) / 31 for each of 32 rows, one in a hundred of which ends in a step of 4.
    assert (batch["z, streams"], batch["z, batch"]) == ("0.39%", "1.00%")
    assert (batch["predicted, streams"], batch["observed"]) == ("+49.4%", "+48.5%")
    _, _, *rows = cells(second)
    assert rows[4] == ["text", "32", "streams", "-0.9", *["-0.9 to -0.9"] * 3]
    assert [row[3].lstrip("+-") for row in rows if row[2] == "batch"] == ["0.0"] * 4


def test_the_published_table_sets_the_derived_predictions_beside_the_studys():
    head, _, *rows = cells(published().split("\n\n")[1])
    row = dict(zip(head, rows[1], strict=True))
    assert (row["hardware"], row["streams"], row["L"]) == ("RTX 3090", "8", "113")
    assert (row["a zombie in a step"], row["z, streams"]) == ("6.9%", "0.27%")
    assert (row["predicted"], row["the study's"], row["with z = 1/L"]) == ("+7.60%", "+7.6%", "+6.94%")
    assert len(rows) == 6


def test_times_of_a_cpu_are_shares_of_the_blocking_period():
    writer = Writer("CPU", absolute=False)
    found = made_up()
    _, _, *rows = cells(writer.speed(found))
    assert rows[0] == ["CPU", "text", "1", "1.000", "1.000 to 1.000", "0.833", "0.833 to 0.833", "+20.0%"]
    for text in (writer.speed, writer.model, writer.depths, writer.host, writer.aims):
        assert not re.search(r"\b(ms|us)\b", text(found))
    assert not re.search(r"\b(ms|us)\b", writer.line(found[0]))


def test_aims_tell_what_was_reached_and_what_was_missed():
    rows = {row[0]: row[1:] for row in cells(Writer("H", absolute=True).aims(made_up()))}
    assert rows["text, 1 stream: device idle per period at most 20 us"] == ["10.0 us", "reached"]
    assert rows["text, 32 streams: device busy at least 99.4%"] == ["99.75%", "reached"]
    measured = rows["text, 32 streams: prediction (streams) and observation within 2 points"]
    assert measured == ["-0.9 to -0.9 points", "reached"]
    assert rows["detect, 1 stream: period at most 5% above that of text"] == ["+4.0%", "reached"]
    assert rows["detect, 32 streams: period at most 5% above that of text"] == ["+10.0%", "MISSED"]


@pytest.mark.parametrize(("streams", "least"), [(1, 0.4), (32, 1.2)])
def test_the_aim_for_the_host_depends_on_the_streams(streams, least):
    text = Writer("H", absolute=True).aims([comparison(t_block=6e-3, t_pipe=4e-3, streams=streams)])
    assert f"host tick at most {least} ms" in text


@pytest.mark.parametrize(("off", "reached"), [(0.019, "reached"), (0.021, "MISSED"), (-0.021, "MISSED")])
def test_a_prediction_is_reached_where_the_interval_of_its_difference_lies_within_the_aim(off, reached):
    found = comparison(t_block=3e-3, t_pipe=2.5e-3)
    walls = [wall * (1 + off / found.observed.median) for wall in found.block.walls]
    found = dataclasses.replace(found, block=dataclasses.replace(found.block, walls=walls))

    rows = {row[0]: row[1:] for row in cells(Writer("H", absolute=True).aims([found]))}
    assert rows["text, 1 stream: prediction (batch) and observation within 2 points"][1] == reached
