"""The board and the alerts: every series and label they name is one that a running system shows, and nothing that matters is left out."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

import promql_parser
import pytest
from prometheus_client.parser import text_string_to_metric_families
from ruamel.yaml import YAML

from schemas import topics
from schemas.audits import AuditFailed, HypervisorAudited, InstanceReport
from schemas.codec import encode, key_of
from schemas.inventory import Hypervisor
from schemas.lifecycle import InstanceArrived
from schemas.requests import Flavor, PlacementRequested
from schemas.resources import ObservedResources
from streams.clock import Clock, SystemClock
from streams.ledger_topics import open_ledger
from streams.log.base import Log, Message
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings
from streams.log.sqlite import SqliteLog
from streams.operator import Stamp, ask
from tests.faults.harness import CLAIMLOG, ROOT, Process, scaled_clock, until
from tests.kafka_broker import bootstrap

BOARD = ROOT / "deploy" / "grafana" / "dashboards" / "claimlog.json"
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yaml"
# Series, and what the alerts say of them at a time.
ALERT_CASES = Path(__file__).with_name("alerts.yaml")
# What Prometheus adds to each series by itself, and its own series about each target.
ADDED_LABELS = {"job", "instance"}
OWN_SERIES = {"up"}
PATIENCE_SECONDS = 60.0
FASTER = 90
AGO_MS = 600_000

Samples = dict[str, list[dict[str, str]]]


def board_expressions() -> dict[str, tuple[str, str]]:
    """Expression and legend of every query, by panel."""
    panels = json.loads(BOARD.read_text())["panels"]
    queries = [(panel["title"], query) for panel in panels for query in panel.get("targets", [])]
    return {f"{title} {query['refId']}": (query["expr"], query["legendFormat"]) for title, query in queries}


def alerts() -> list[dict[str, Any]]:
    return [rule for group in YAML(typ="safe").load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def expressions() -> dict[str, str]:
    return {name: expression for name, (expression, _) in board_expressions().items()} | {rule["alert"]: rule["expr"] for rule in alerts()}


def selectors(node: Any, *, ranged: bool = True) -> Iterator[promql_parser.VectorSelector]:
    """Every selector of series in an expression, or only those that take one sample of each."""
    match node:
        case promql_parser.VectorSelector():
            yield node
        case promql_parser.MatrixSelector():
            if ranged:
                yield node.vector_selector
        case promql_parser.AggregateExpr() | promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            yield from selectors(node.expr, ranged=ranged)
        case promql_parser.BinaryExpr():
            yield from selectors(node.lhs, ranged=ranged)
            yield from selectors(node.rhs, ranged=ranged)
        case promql_parser.Call():
            for argument in node.args:
                yield from selectors(argument, ranged=ranged)


def grouped_by(node: Any) -> Iterator[str]:
    """Every label that an expression groups by or matches on."""
    text = str(node.prettify())
    for names in re.findall(r"\b(?:by|on|ignoring|without)\s*\(([^)]*)\)", text):
        yield from (name.strip() for name in names.split(",") if name.strip())


def matches(labels: dict[str, str], matcher: promql_parser.Matcher) -> bool:
    value = labels.get(matcher.name, "")
    match matcher.op:
        case promql_parser.MatchOp.Equal:
            return value == matcher.value
        case promql_parser.MatchOp.NotEqual:
            return value != matcher.value
        case promql_parser.MatchOp.Re:
            return re.fullmatch(matcher.value, value) is not None
        case _:
            return re.fullmatch(matcher.value, value) is None


def unknown(expression: str, samples: Samples) -> list[str]:
    """What an expression names that the samples do not have."""
    parsed = promql_parser.parse(expression)
    complaints = []
    known_labels = set(ADDED_LABELS) | {"le"}
    for selector in selectors(parsed):
        name = str(selector.name)
        if name in OWN_SERIES:
            continue
        if name not in samples:
            complaints.append(f"no series {name}")
            continue
        known_labels |= {label for labels in samples[name] for label in labels}
        asked = [matcher for matcher in selector.matchers.matchers if matcher.name not in ADDED_LABELS]
        if not any(all(matches(labels, matcher) for matcher in asked) for labels in samples[name]):
            complaints.append(f"no sample of {selector.prettify()}")
    return complaints + [f"no label {label}" for label in grouped_by(parsed) if label not in known_labels]


def audited(node_id: str, counter: int, taken_at_ms: int, *guests: InstanceReport) -> HypervisorAudited:
    host = Hypervisor(vcpus=8, pcpus=4, memory_mib=16_384, disk_mib=100_000)
    return HypervisorAudited(
        node_id=node_id,
        producer="p",
        epoch=1,
        counter=counter,
        taken_at_ms=taken_at_ms,
        mono_ms=taken_at_ms,
        digest=f"d{counter}",
        hypervisor=host,
        instances=guests,
    )


def message(topic: str, event: Any) -> Message:
    return Message(topic, key_of(event) or b"", encode(event))


GHOST_SIZE = ObservedResources(vcpus=2, pcpus=0, memory_mib=2048, disk_mib=5)
GHOST = InstanceReport(instance_id="0b5d7a3e-1111-4222-8333-444455556666", resources=GHOST_SIZE)


def history(now_ms: int) -> list[Message]:
    """A fleet with everything on it that a board has to show: a guest that nobody claimed, a failed look, poison."""
    larger = InstanceReport(instance_id=GHOST.instance_id, resources=ObservedResources(vcpus=4, pcpus=0, memory_mib=4096, disk_mib=10))
    arrived = InstanceArrived(node_id="n1", producer="p", epoch=1, counter=1, event_time_ms=now_ms - 100_000, instance=larger)
    failed = AuditFailed(
        node_id="n3",
        producer="p",
        epoch=1,
        counter=2,
        taken_at_ms=now_ms - 1000,
        mono_ms=now_ms,
        reason="libvirt is away",
        unknown_since_ms=now_ms - 1000,
    )
    return [
        message(topics.LIFECYCLE, arrived),
        message(topics.AUDITS, audited("n1", 1, now_ms - 5000, GHOST)),
        message(topics.AUDITS, audited("n2", 1, now_ms - 5000)),
        message(topics.AUDITS, audited("n3", 1, now_ms - 5000)),
        message(topics.AUDITS, failed),
        Message(topics.AUDITS, b"n1", b"{ this is no audit"),
        Message(topics.CLAIMS, b"n1", b"nor is this a claim"),
    ]


def requests() -> list[Message]:
    """One that fits, and one that is too large."""
    flavors = (Flavor(vcpus=1, memory_mib=1024), Flavor(vcpus=999, memory_mib=1024))
    return [ask(PlacementRequested(request_id=f"r-{flavor.vcpus}", flavor=flavor), Stamp("r", 1)) for flavor in flavors]


def scraped(url: str) -> Samples:
    """What is shown there, without labels of which nothing has been counted yet."""
    with urlopen(url) as answer:
        text = answer.read().decode()
    samples: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.value or not (sample.labels and sample.name.endswith("_total")):
                samples.setdefault(sample.name, []).append(dict(sample.labels))
    return samples


class Watched:
    """Processes of one ledger, and what all of them together tell Prometheus."""

    def __init__(self, log: Log, clock: Clock, processes: Sequence[Process]) -> None:
        self._log, self._clock, self._processes = log, clock, processes
        self._counters = count(2)

    def scraped(self) -> Samples:
        """What each process shows now, side by side."""
        found: Samples = {}
        for process in self._processes:
            process.must_run()
            until(lambda process=process: "metrics and health at " in process.said(), PATIENCE_SECONDS, "it serves metrics")  # type: ignore[misc]
            url = re.search(r"http://\S+/metrics", process.said())
            assert url is not None
            for name, labels in scraped(url[0]).items():
                found.setdefault(name, []).extend(labels)
        return found

    def shows(self, series: str, label: str, *values: str) -> None:
        """Wait until a series has these values of a label."""

        def holds() -> bool:
            return set(values) <= {labels[label] for labels in self.scraped().get(series, [])}

        until(holds, PATIENCE_SECONDS, f"{series} of {', '.join(values)}")

    def is_confirmed(self) -> bool:
        """Whether one more audit that shows the guest makes it a confirmed leak."""
        self._log.append([message(topics.AUDITS, audited("n1", next(self._counters), self._clock.wall_ms(), GHOST))])
        return "confirmed" in {labels["state"] for labels in self.scraped().get("claimlog_leaks", [])}

    def sees_everything(self) -> Samples:
        """Let happen what a board has to show, and give all series once they show it."""
        until(self.is_confirmed, PATIENCE_SECONDS, "the guest that nobody claimed is a confirmed leak")
        self.shows("claimlog_node_audit_timestamp_seconds", "node", "n1", "n2")
        self._log.append(requests())
        self.shows("claimlog_placements_total", "result", "placed", "no-valid-node")
        self.shows("claimlog_claim_outcomes_total", "outcome", "granted")
        self.shows("claimlog_dead_letters_total", "topic", topics.AUDITS, topics.CLAIMS)
        self.shows("claimlog_reader_lag_records", "engine", "carrier", "folder", "watcher", "scheduler")
        return self.scraped()


@contextmanager
def embedded(folder: Path) -> Iterator[Samples]:
    """`claimlog run` on the embedded log, a quarter of an hour in ten seconds: a finding is confirmed by looks that come later."""
    clock = scaled_clock(FASTER)
    with closing(SqliteLog.open(folder / "log", create=True, clock=clock.wall_ms)) as log:
        open_ledger(log, ledger_partitions=2)
        log.append(history(clock.wall_ms()))
        timing = ["--clock", str(clock), "--lease-timeout", str(10 * FASTER)]
        with running(folder, ["--log", f"sqlite:{folder / 'log'}", *timing], [[]]) as processes:
            yield Watched(log, clock, processes).sees_everything()


@contextmanager
def on_kafka(folder: Path) -> Iterator[Samples]:
    """A Faust worker and a scheduler of its own on a broker, whose clock nobody turns: the first looks are of ten minutes ago."""
    settings = KafkaSettings(bootstrap=bootstrap(), prefix=f"watched-{uuid4().hex[:8]}", single_broker=True)
    with closing(KafkaLog.open(settings)) as log:
        open_ledger(log, ledger_partitions=2)
        clock = SystemClock()
        log.append(history(clock.wall_ms() - AGO_MS))
        common = ["--log", f"{settings.place}?single-broker=true"]
        roles = [["--only", "processor", "--state", str(folder / "state")], ["--only", "scheduler", "--lease-timeout", "6"]]
        with running(folder, common, roles) as processes:
            yield Watched(log, clock, processes).sees_everything()


@contextmanager
def running(folder: Path, common: Sequence[str], roles: Sequence[Sequence[str]]) -> Iterator[list[Process]]:
    """`claimlog run` once for each role; all end with 0."""
    processes = []
    for number, role in enumerate(roles):
        command = [*CLAIMLOG, "run", *common, "--metrics", "0", *role]
        processes.append(Process(f"watched-{number}", command, folder / f"run-{number}.err"))
        processes[-1].start()
    try:
        yield processes
        assert [process.stop() for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            if process.running is not None:
                process.running.kill()
                process.running.wait()


@pytest.fixture(scope="module", params=[embedded, on_kafka], ids=["embedded", "kafka"])
def samples(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Samples]:
    """What a running system tells Prometheus once it has seen the history."""
    with request.param(tmp_path_factory.mktemp("watched")) as found:
        yield found


def test_every_series_and_label_of_board_and_alerts_is_one_that_a_running_system_shows(samples: Samples) -> None:
    found = {name: complaints for name, expression in expressions().items() if (complaints := unknown(expression, samples))}

    assert found == {}


def test_a_legend_or_a_text_names_only_labels_that_its_expression_keeps(samples: Samples) -> None:
    legends = [(name, expression, legend) for name, (expression, legend) in board_expressions().items()]
    texts = [(rule["alert"], rule["expr"], json.dumps(rule["annotations"]).replace("$labels.", "")) for rule in alerts()]
    for name, expression, text in (*legends, *texts):
        parsed = promql_parser.parse(expression)
        named = set(re.findall(r"{{ ?(\w+) ?}}", text.replace("$value", "")))
        if isinstance(parsed, promql_parser.AggregateExpr):
            kept = set(grouped_by(parsed))
        else:
            series = [str(selector.name) for selector in selectors(parsed)]
            kept = {label for each in series for labels in samples.get(each, []) for label in labels} | ADDED_LABELS
            kept |= set(re.findall(r'label_replace\(.+?, "(\w+)", ', expression))
        assert named <= kept, f"{name}: {named - kept}"


def test_every_series_of_ours_is_on_the_board(samples: Samples) -> None:
    shown = {str(selector.name) for expression in expressions().values() for selector in selectors(promql_parser.parse(expression))}
    # A histogram is shown by its buckets, and nobody looks at when a counter was made.
    ours = {name for name in samples if name.startswith("claimlog_") and not name.endswith(("_sum", "_count", "_created"))}

    missing = ours - shown

    assert missing == set()


@pytest.mark.parametrize(
    ("expression", "complaint"),
    [
        ("rate(claimlog_placement_total[1m])", "no series claimlog_placement_total"),
        ('claimlog_node_vcpus{view="gaps"}', 'no sample of claimlog_node_vcpus{view="gaps"}'),
        ("sum by (kinds) (claimlog_leaks)", "no label kinds"),
    ],
)
def test_a_wrong_series_value_or_label_is_found(samples: Samples, expression: str, complaint: str) -> None:
    assert unknown(expression, samples) == [complaint]


def test_promtool_agrees_where_it_is_installed() -> None:
    if shutil.which("promtool") is None:
        # The parser above has read every expression; this is a second opinion.
        assert all(promql_parser.parse(rule["expr"]) is not None for rule in alerts())
        return
    for asked in (["check", "rules", str(ALERTS)], ["test", "rules", str(ALERT_CASES)]):
        checked = subprocess.run(["promtool", *asked], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stdout + checked.stderr


def test_alerts_look_back_over_a_range_since_one_scrape_may_have_failed() -> None:
    looks_back = {
        rule["alert"] for rule in alerts() for each in selectors(promql_parser.parse(rule["expr"]), ranged=False) if each.offset is not None
    }

    assert looks_back == set()


def test_a_backlog_that_each_scheduler_reads_is_shown_once_like_its_alert() -> None:
    (alert,) = [rule["expr"] for rule in alerts() if rule["alert"] == "ClaimlogReaderBehind"]
    shown, _ = board_expressions()["Readers behind the log A"]

    assert shown == alert.replace('{engine!="folder"}', "").removesuffix(" > 20000")


def test_what_is_told_as_over_committed_is_drawn() -> None:
    (alert,) = [rule["expr"] for rule in alerts() if rule["alert"] == "ClaimlogNodeOvercommitted"]
    drawn = [
        promql_parser.parse(expression) for name, (expression, _) in board_expressions().items() if name.startswith("Over-committed: ")
    ]

    assert {each.name for expression in drawn for each in selectors(expression)} == {
        each.name for each in selectors(promql_parser.parse(alert))
    }


def test_panels_have_ids_of_their_own_and_do_not_lie_on_each_other() -> None:
    panels = json.loads(BOARD.read_text())["panels"]
    places = [each["gridPos"] for each in panels]
    cells = [(x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]

    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
