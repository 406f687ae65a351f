from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from photonlite.ray.metrics import joined


def page(count: int) -> str:
    registry = CollectorRegistry()
    counter = Counter("asked", "Requests.", ["route"], registry=registry)
    counter.labels("/v1/detect").inc(count)
    Histogram("waited_seconds", "Waits.", buckets=[1, 2], registry=registry).observe(1.5)
    return generate_latest(registry).decode()


def test_samples_of_all_replicas_are_told_apart_by_a_label() -> None:
    families = {one.name: one for one in text_string_to_metric_families(joined({"a": page(3), "b": page(4)}).decode())}

    asked = {sample.labels["replica"]: sample for sample in families["asked"].samples if sample.name == "asked_total"}
    assert {replica: sample.value for replica, sample in asked.items()} == {"a": 3, "b": 4}
    assert asked["a"].labels["route"] == "/v1/detect"
    assert families["waited_seconds"].type == "histogram"
    buckets = [one for one in families["waited_seconds"].samples if one.name.endswith("_bucket")]
    assert {(one.labels["replica"], one.labels["le"], one.value) for one in buckets} == {
        (replica, le, value) for replica in "ab" for le, value in (("1.0", 0), ("2.0", 1), ("+Inf", 1))
    }


def test_without_replicas_the_page_is_empty() -> None:
    assert joined({}) == b""
