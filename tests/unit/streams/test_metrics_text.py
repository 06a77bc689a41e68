"""`/metrics`: byte for byte what the library would write if it had a sample of each series of a node."""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import generate_latest, make_wsgi_app
from prometheus_client.core import GaugeMetricFamily, Metric

from schemas.results import NodeResources, ResourceRow
from schemas.units import AMOUNT_MAX
from streams.metrics import Health, Metrics, application
from streams.metrics_nodes import FAMILIES, REST_SECONDS, SLICE_SECONDS, SLICE_SECONDS_MAX, VIEWS, Breath, NodeFamily, NodeTexts
from streams.metrics_text import Environ

ODD_NAMES = ['a"b', "a\\b", "a\nb", "a\\nb", "ü ✓", "\r", "\u2028", "claimlog_node_vcpus{", "\nclaimlog_node_vcpus{", "\\", '"', "}"]
Rows = Mapping[str, NodeResources]
Asked = tuple[str, list[tuple[str, str]], bytes]


class Plain:
    """Every family of the registry, those of nodes with a sample of each series: the plain way, which is slow."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        nodes = {family.name: family for family in plain_families(self._metrics.rows)}
        for family in self._metrics.registry.collect():
            yield nodes[family.name] if isinstance(family, NodeFamily) else family


def plain_families(every: Rows) -> Iterator[GaugeMetricFamily]:
    rows = [row for row in every.values() if row.status != "withdrawn"]
    resources = (
        ("vcpus", "vcpus", "vCPUs", 1),
        ("pcpus", "pcpus", "Dedicated CPUs", 1),
        ("memory_mib", "memory_bytes", "Memory", 1 << 20),
        ("disk_mib", "disk_bytes", "Disk", 1 << 20),
    )
    for name, series, title, unit in resources:
        family = GaugeMetricFamily(f"claimlog_node_{series}", f"{title} of a node, by view", labels=["node", "view"])
        for row in rows:
            if name == "pcpus" and not any(getattr(row.pcpus, view) for view in VIEWS):
                continue
            for view in VIEWS:
                amount: int | None = getattr(getattr(row, name), view)
                if amount is not None:
                    family.add_metric([row.node_id, view], amount * unit)
        yield family
    audits = GaugeMetricFamily("claimlog_node_audit_timestamp_seconds", "When the last audit was taken", labels=["node"])
    for row in rows:
        if row.audit_taken_at_ms is not None:
            audits.add_metric([row.node_id], row.audit_taken_at_ms / 1000)
    yield audits


def row(node_id: str, used: int = 0, **fields: object) -> NodeResources:
    amounts = ResourceRow(total=64, limit=64, reported=used, claimed=used, used=used, free=64 - used)
    return replace(
        NodeResources(node_id=node_id, partition=0, offset=0, vcpus=amounts, memory_mib=amounts, audit_taken_at_ms=1_700_000_000_123),
        **fields,
    )


def fill(metrics: Metrics, rows: Iterable[NodeResources]) -> None:
    metrics.rows.update((each.node_id, each) for each in rows)


def asked(app: object, **environ: str) -> Asked:
    assert callable(app)
    given: list[tuple[str, list[tuple[str, str]]]] = []
    told: Environ = {"PATH_INFO": "/metrics", "REQUEST_METHOD": "GET", **environ}
    body = b"".join(app(told, lambda status, headers: given.append((status, headers))))
    return *given[0], body


def both(metrics: Metrics, **environ: str) -> tuple[Asked, Asked]:
    """What is answered, and what the library alone would."""
    return asked(application(metrics, Health(time.monotonic)), **environ), asked(make_wsgi_app(Plain(metrics)), **environ)


def at_rest(text: bytes) -> bytes:
    """Without what is another figure each time."""
    return re.sub(rb"(?m)^(process_\w+) .*$", rb"\1", text)


PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
ACCEPTED = [
    PROMETHEUS,
    "",
    "*/*",
    "text/plain;version=0.0.4",
    "text/plain;version=1.0.0;escaping=underscores",
    "text/plain;version=1.0.0;escaping=values",
    "application/openmetrics-text;version=1.0.0;escaping=dots",
    "text/plain;version=1.0.0;escaping=dots",
    "application/openmetrics-text;version=0.0.1",
    "application/openmetrics-text",
]


@pytest.mark.parametrize("accept", ACCEPTED)
@pytest.mark.parametrize("encoding", ["", "gzip", "br;q=1.0, GZIP;q=0.5"])
def test_the_answer_is_what_the_library_would_answer_whatever_is_asked_for(accept: str, encoding: str) -> None:
    metrics = Metrics("1.2.3")
    fill(metrics, (row(name, used) for used, name in enumerate([*ODD_NAMES, *map(str, range(500))])))
    fill(metrics, [row("gone", status="withdrawn"), row("new", audit_taken_at_ms=None)])
    metrics.findings["ghost-instance", "confirmed"] = 2

    (status, headers, body), (plain_status, plain_headers, plain_body) = both(metrics, HTTP_ACCEPT=accept, HTTP_ACCEPT_ENCODING=encoding)

    assert (status, headers[:-1]) == (plain_status, plain_headers)
    assert headers[-1] == ("Content-Length", str(len(body)))
    if encoding:
        body, plain_body = zlib.decompress(body, wbits=31), zlib.decompress(plain_body, wbits=31)
    assert at_rest(body) == at_rest(plain_body)


@pytest.mark.parametrize("environ", [{"REQUEST_METHOD": "HEAD"}, {"REQUEST_METHOD": "OPTIONS"}])
def test_what_else_can_be_asked_is_answered_by_the_library(environ: dict[str, str]) -> None:
    metrics = Metrics("1")
    metrics.rows["n1"] = row("n1")

    ours, theirs = asked(application(metrics, Health(time.monotonic)), **environ), asked(make_wsgi_app(metrics.registry), **environ)

    assert ours == theirs


def test_who_names_series_gets_just_the_lines_of_each() -> None:
    metrics = Metrics("1")
    fill(metrics, [row("n1"), row("n2")])
    metrics.findings["ghost-instance", "confirmed"] = 2
    answering = application(metrics, Health(time.monotonic))
    whole = asked(answering)[2].decode()
    lines: dict[str, list[str]] = {}
    for line in whole.splitlines():
        if not line.startswith("#"):
            lines.setdefault(re.split("[{ ]", line)[0], []).append(line)
    lasting = {name: said for name, said in lines.items() if not name.startswith(("process_", "claimlog_process"))}

    for name, said in lasting.items():
        only = asked(answering, QUERY_STRING=f"name[]={name}")[2].decode()
        assert [line for line in only.splitlines() if not line.startswith("#")] == said
    two = asked(answering, QUERY_STRING="name[]=claimlog_leaks&name[]=claimlog_node_vcpus&name[]=nothing")[2].decode()

    assert {"claimlog_leaks", "claimlog_node_vcpus", "claimlog_build_info", "claimlog_nodes_unseen"} <= set(lasting)
    assert [line for line in two.splitlines() if line[0] != "#"] == [
        line for line in whole.splitlines() if line.startswith(("claimlog_leaks{", "claimlog_node_vcpus{"))
    ]
    assert asked(answering, QUERY_STRING="name[]=nothing")[2] == b""


amounts = st.integers(-AMOUNT_MAX, AMOUNT_MAX) | st.integers(-10, 10)
resource_rows = st.builds(
    ResourceRow, limit=st.none() | amounts, reported=st.none() | amounts, tracked=st.none() | amounts, claimed=amounts, used=amounts,
    free=st.none() | amounts, gap=st.none() | amounts,
)  # fmt: skip
node_rows = st.builds(
    NodeResources,
    node_id=st.just("?"), partition=st.just(0), offset=st.integers(0, 2), status=st.sampled_from(["enabled", "disabled", "withdrawn"]),
    vcpus=resource_rows, pcpus=resource_rows | st.just(ResourceRow()), memory_mib=resource_rows,
    audit_taken_at_ms=st.none() | st.integers(0, 1 << 50),
)  # fmt: skip
names = st.sampled_from([*"abcdef", *ODD_NAMES]) | st.text(min_size=1, max_size=4)
steps = st.dictionaries(names, st.none() | node_rows, max_size=8)


@given(st.lists(steps, max_size=5))
def test_whatever_changes_from_one_scrape_to_the_next_the_lines_are_those_of_the_rows(
    changes: list[dict[str, NodeResources | None]],
) -> None:
    texts, rows = NodeTexts(nodes_a_block=3), dict[str, NodeResources]()

    for change in changes:
        for node_id, changed in change.items():
            if changed is None:
                rows.pop(node_id, None)
            else:
                rows[node_id] = replace(changed, node_id=node_id)
        families = texts.families(list(rows.values()), lambda: None)

        for family, plain in zip(families, plain_families(rows), strict=True):
            lines = generate_latest(Only(plain)).split(b"\n", 2)[2]
            assert b"".join(family.lines) == lines


class Only:
    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        return [self._family]


def test_what_is_as_it_was_is_not_written_again() -> None:
    texts, rows = NodeTexts(nodes_a_block=2), list(map(row, "abcd"))
    before = texts.families(rows, lambda: None)

    same = texts.families(list(rows), lambda: None)
    rows[2] = replace(rows[2], audit_taken_at_ms=1_700_000_060_000, offset=5)
    audited = texts.families(rows, lambda: None)

    expected = {family.name: [True, True, True, True] for family in FAMILIES}
    assert kept(before, same) == expected
    assert kept(before, audited) == expected | {"claimlog_node_audit_timestamp_seconds": [True, True, False, True]}


def kept(before: list[NodeFamily], after: list[NodeFamily]) -> dict[str, list[bool]]:
    return {one.name: [a is b for a, b in zip(one.lines, other.lines, strict=True)] for one, other in zip(before, after, strict=True)}


@pytest.mark.parametrize(("rest_took", "works"), [(0.0, SLICE_SECONDS), (0.003, 0.003), (1.0, SLICE_SECONDS_MAX)])
def test_others_have_the_interpreter_for_as_long_as_something_that_takes_long(rest_took: float, works: float) -> None:
    now, rests = [0.0], list[float]()

    def sleep(seconds: float) -> None:
        rests.append(seconds)
        now[0] += rest_took

    breathe = Breath(lambda: now[0], sleep)
    breathe()
    now[0] += 2 * SLICE_SECONDS
    breathe()
    now[0] += 0.9 * works
    breathe()
    before = list(rests)
    now[0] += 0.2 * works
    breathe()

    assert (before, rests) == ([REST_SECONDS], [REST_SECONDS] * 2)
