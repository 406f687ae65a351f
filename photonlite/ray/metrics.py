"""Metrics of several replicas as one page in Prometheus's format."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector


def joined(pages: Mapping[str, str]) -> bytes:
    """Join the pages of replicas, each of whose samples gets the label `replica`, its name."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Joined(pages))
    return generate_latest(registry)


class _Joined(Collector):
    def __init__(self, pages: Mapping[str, str]) -> None:
        self._pages = pages

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for replica, page in self._pages.items():
            for family in text_string_to_metric_families(page):
                metric = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    metric.add_sample(sample.name, {**sample.labels, "replica": replica}, sample.value)
        yield from families.values()
