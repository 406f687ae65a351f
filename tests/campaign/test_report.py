from bench.campaign.report import page
from bench.campaign.state import State, Tally
from bench.campaign.trial import Trial


def trial(name, aim=1000):
    return Trial(name, f"things of {name}", aim, "they fail", lambda setup, first: iter(()))  # type: ignore[arg-type]


def test_the_page_has_what_was_counted_and_what_was_not():
    tally = Tally(counted=1500, failed=25, seconds=5400, figures={"slowest (s)": 1.2345}, counts={"status 200": 12345})
    tally.failures = [{"number": number, "seed": 4, "line": f"got `{number}`"} for number in range(25)]
    tally.failures[5]["note"] = "mended since"
    run = {"date": "2026-11-24", "seed": 4, "trials": ["a"], "seconds": 5400, "machine": "x86", "load_before": 0.5}
    state = State({"a": tally}, [{**run, "load_after": 1.5, "versions": {"torch": "2.11"}}])

    text = page(state, [trial("a", 10_000), trial("b")])

    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "things of" in line]
    assert rows == [["things of a", "10,000", "1,500", "25", "1.50"], ["things of b", "1,000", "0", "0", "0.00"]]
    assert "- **a**: slowest (s) 1.23; status 200: 12,345." in text
    assert "- a 3 (seed 4): `got '3'`" in text
    assert "- a 5 (seed 4): `got '5'`: mended since\n" in text
    assert "- a: 5 more" in text
    assert "x86, load 0.5 to 1.5" in text
    assert "torch 2.11" in text
    assert "- **b**: they fail." in text


def test_a_page_without_failures_says_so():
    assert "\n## Failures\n\nNone.\n" in page(State({"a": Tally(counted=1)}), [trial("a")])


def test_runs_that_differ_in_seed_time_and_load_share_a_row():
    run = {"date": "2026-11-26", "trials": ["a"], "machine": "x86", "versions": {"torch": "2.11"}}
    loads = [(2.5, 13.0), (2.0, 17.5)]
    runs = [
        {**run, "seed": seed, "seconds": 600 + 60 * seed, "load_before": before, "load_after": after}
        for seed, (before, after) in enumerate(loads, 1)
    ]
    other = {**runs[0], "trials": ["b"]}

    text = page(State(runs=[*runs, other]), [trial("a"), trial("b")])

    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if "2026-11-26" in line]
    assert rows == [
        ["2026-11-26", "1, 2", "a", "11, 12", "x86, load 2.0 to 17.5", "torch 2.11"],
        ["2026-11-26", "1", "b", "11", "x86, load 2.5 to 13.0", "torch 2.11"],
    ]
