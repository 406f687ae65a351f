from bench.overlap.timeline import explain, intervals_of, tell_steps
from photonlite.observe.trace import Span

SPANS = [
    Span("compute", "forward", 0.000, 0.004, {"step": 0, "part": 1}),
    Span("compute", "finalize", 0.004, 0.005, {"step": 0}),
    Span("compute", "forward", 0.006, 0.009, {"step": 1}),
    Span("encode", "crops", 0.000, 0.001, {"step": 2}),
    Span("encode", "encode", 0.000, 0.005, {"step": 2, "part": 1}),
    Span("host", "wait", 0.002, 0.005, {"step": 0}),
    Span("host", "commit", 0.005, 0.0055, {"step": 0}),
    Span("host", "launch", 0.0055, 0.0075, {"step": 1}),
]


def test_the_longest_intervals_are_told_with_what_ran_in_them() -> None:
    lines = explain(SPANS, intervals_of([0.001, 0.007, 0.009]), 1)

    assert lines == [
        "6.00: decode in part 3.00 of 4.00 + decode 1.00 of 3.00; idle 1.00; "
        "host: launch 1.50, commit 0.50, between 1.00; beside: encode in part 4.00 of 5.00"
    ]


def test_steps_are_told_by_where_they_ran_and_what_ran_beside_them() -> None:
    assert tell_steps(SPANS) == [
        "decode in part, beside the encoder: 1, mean 4.00, median 4.00, longest 4.00",
        "decode on the whole card, alone: 1, mean 3.00, median 3.00, longest 3.00",
        "encode in part: 1, mean 5.00, median 5.00, longest 5.00",
    ]
