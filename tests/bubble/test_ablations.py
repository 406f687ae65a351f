import pytest

from bench.bubble.ablations import GRAPHS, MASKS, PADDING, MasksFirst, Measured, Variant, ablation_table, measure
from bench.bubble.rounds import Rig
from bench.bubble.subjects import engine_config, requests
from tests.bubble.small import round_of, spans_of, tiny_subject


class Watched(MasksFirst):
    """Notes how many steps are in flight before each launch of a decode step."""

    seen: list[int]

    def _launch(self, batch, **options):
        in_flight = len(self.pipeline.in_flight)
        step = super()._launch(batch, **options)
        if step is not None and step.kind == "decode":
            self.seen.append(in_flight)
        return step


@pytest.mark.parametrize(("workload", "most"), [("text", 1), ("detect", 0)])
def test_masks_first_launches_ahead_only_where_masks_are_known(workload, most, monkeypatch):
    monkeypatch.setattr(Watched, "seen", [], raising=False)
    subject = tiny_subject()
    rig = Rig(subject, engine_config(subject, (2,), depth=2), core=Watched)
    plain = Rig(subject, engine_config(subject, (2,), depth=2))
    try:
        one = rig.run(requests(subject, workload, 2, seed=3), traced=False)
        other = plain.run(requests(subject, workload, 2, seed=3), traced=False)
    finally:
        rig.close()
        plain.close()

    assert max(Watched.seen) == most
    assert one.tokens == other.tokens
    # Where the commit comes before the launch, no step carries a sequence that has ended.
    assert one.zombies == (2 if workload == "text" else 0)


def test_variants_differ_in_what_their_names_say():
    assert [(one.depth, one.core is MasksFirst, dict(one.settings)) for one in MASKS] == [
        (1, False, {}),
        (2, True, {}),
        (2, False, {}),
    ]
    assert [(one.depth, one.settings.get("cuda_graphs", True)) for one in GRAPHS] == [
        (1, False),
        (2, False),
        (1, True),
        (2, True),
    ]
    assert [(one.settings["graph_sizes"], one.settings.get("pad_to_graph", True)) for one in PADDING] == [
        ((20,), True),
        ((24,), True),
        ((32,), True),
        ((32,), False),
    ]


def test_every_variant_gets_its_settings_and_its_turn(monkeypatch):
    made, order = [], []

    class FakeRig:
        def __init__(self, subject, config, *, core):
            self.depth = config.depth
            made.append((config.depth, config.graph_sizes, config.pad_to_graph, config.max_batch, core))

        def run(self, requests, *, traced):
            order.append((self.depth, traced))
            spans = spans_of(5, forward=1.0, finalize=0.2, idle=0.2) if traced else None
            return round_of(1.0 / self.depth, 5, streams=len(requests), spans=spans)

        def close(self):
            made.append("closed")

    monkeypatch.setattr("bench.bubble.ablations.Rig", FakeRig)
    variants = [
        Variant("one", depth=1, settings={"pad_to_graph": False}),
        Variant("two", settings={"graph_sizes": (4,)}, core=MasksFirst),
    ]
    found = measure(variants, tiny_subject(), [("text", 2)], rounds=3, room=6)

    assert made[0][:4] == (1, (2,), False, 6)
    assert made[1] == (2, (4,), True, 6, MasksFirst)
    assert made[2:] == ["closed"] * 2
    # One round warms up, three are measured, two are traced.
    assert order == [(1, False), (2, False)] * 4 + [(1, True), (2, True)] * 2
    assert [one.periods for one in found["text", 2]] == [pytest.approx([1.0] * 3), pytest.approx([0.5] * 3)]


def test_the_table_compares_with_the_first_variant():
    made = [
        Measured(Variant("slow"), [3e-3, 1e-3, 2e-3], 1.5e-3, 4e-4, 0.75),
        Measured(Variant("quick"), [1e-3] * 3, 0.9e-3, 4e-4, 0.9999),
    ]
    rows = cells(ablation_table({("text", 8): made}, absolute=True))
    assert rows[0] == ["text", "8", "slow", "2.000", "1.500 to 2.500", "+0.0%", "1.500", "400", "75.00%"]
    assert rows[1] == ["text", "8", "quick", "1.000", "1.000 to 1.000", "+100.0%", "0.900", "400", "99.99%"]
    shares = cells(ablation_table({("text", 8): made}, absolute=False))
    assert shares[1][3:5] == ["0.500", "0.500 to 0.500"]


def cells(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
