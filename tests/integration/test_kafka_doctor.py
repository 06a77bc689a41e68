"""`claimlog doctor` on Kafka: brokers and copies, topics, clock, who is behind, and who is in the groups."""

from __future__ import annotations

import json
from pathlib import Path
from time import sleep

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # public, though not in its __all__
from msgspec.structs import replace

from producers.load import SimulatedFleet
from producers.source import said
from schemas import topics
from streams.cli.doctor import cluster as checks_cluster
from streams.cli.doctor.checks import UNREAD_MS
from streams.cli.main import run
from streams.cli.produce.publishing import message
from streams.log.base import Log, Partition, TopicSpec
from streams.log.kafka_health import Cluster, Members
from streams.log.kafka_topics import TIMESTAMPS, TopicDifference, wanted
from tests.cli_log import FleetLog
from tests.faults.harness import until
from tests.faults.shared_site import PATIENCE_SECONDS, SharedSite, shared_site

SOUND = Cluster(brokers=3, partitions=40, leaderless=(), thin=(), offsets_copies=3)
PLACES = tuple(Partition(topics.CLAIMS, number) for number in range(5))


def doctor(here: SharedSite, capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, tuple[str, str]]]:
    """The exit code, and status and words of each check."""
    capsys.readouterr()
    code = run(["doctor", "-o", "json", *flags, "--log", here.spec])
    return code, {item["check"]: (item["status"], item["says"]) for item in json.loads(capsys.readouterr().out)["items"]}


def audit(log: Log, fleet: SimulatedFleet, number: int) -> None:
    """Audits that nobody reads for so long that somebody is behind."""
    log.append([message(said(topics.AUDITS, fleet.audit(node_id, 1_000 * number, number))) for node_id in fleet.nodes])
    sleep(UNREAD_MS / 1000 + 0.5)


def test_a_cluster_with_workers_is_well_and_what_is_missing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with shared_site(tmp_path) as here, here.opened(1, 1) as log:
        fleet = SimulatedFleet(3, epoch=1)
        audit(log, fleet, 1)
        _, alone = doctor(here, capsys, "--quick")
        here.worker("w")
        here.scheduler("s")

        def all_well() -> bool:
            found = doctor(here, capsys, "--quick")[1]
            names = ("brokers", "settings", "topics", "ledger", "clock", "workers", "schedulers on", "reconciler", "node rows")
            return all(found[name][0] == "ok" for name in names)

        until(all_well, PATIENCE_SECONDS, "all is well")
        code, busy = doctor(here, capsys)
        here.stop("s")
        here.stop("w")
        audit(log, fleet, 2)
        _, behind = doctor(here, capsys, "--quick")
        # Three copies are wanted, unless somebody says that a single broker is meant.
        with monkeypatch.context() as archived:
            archived.setenv("CLAIMLOG_ARCHIVE", str(tmp_path))
            _, with_history = doctor(here, capsys, "--quick")
        careless = SharedSite(here.site, replace(here.settings, single_broker=False))
        refused, thin = doctor(careless, capsys, "--quick")

    group = f"{here.settings.prefix}.stream-processor"
    assert with_history.keys() - {"history"} == behind.keys()
    # Brokers miss a worker that has ended only after its session.
    assert with_history["workers"] in (behind["workers"], alone["workers"])
    assert alone["workers"] == ("warn", f"nobody is in group {group}")
    assert alone["schedulers on"][0] == "warn"
    assert alone["reconciler"] == ("warn", alone["reconciler"][1])
    assert alone["reconciler"][1].startswith("3 records behind")
    assert code == 0, busy
    assert busy["workers"] == ("ok", f"1 in group {group}")
    assert busy["schedulers on"] == ("ok", f"1 in group {here.settings.prefix}.schedulers.placement-requests.lease")
    assert busy["brokers"] == ("ok", "1 broker, 13 partitions, each with all its copies")
    assert busy["digests"][0] == "ok"
    assert behind["reconciler"][1].startswith("3 records behind")
    assert behind["schedulers on"][0] == "warn"
    assert (refused, thin["settings"][0]) == (3, "fail")
    assert "replication is 1, not 3 or more" in thin["settings"][1]


def verb(here: SharedSite, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, str], str]:
    """The exit code, what was found of each topic, and what was said beside."""
    capsys.readouterr()
    code = run([*words, "-o", "json", "--log", here.spec])
    printed = capsys.readouterr()
    return code, {item["topic"]: item["found"] for item in json.loads(printed.out)["items"]}, printed.err


def test_topics_with_the_times_of_writers_are_told_with_what_follows_and_what_to_do_and_nothing_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    of_writers = (topics.AUDITS, topics.CLAIMS)
    with shared_site(tmp_path) as here:
        admin, made = AdminClient({"bootstrap.servers": here.settings.bootstrap}), []
        for name in of_writers:
            config = {key: value for key, value in wanted(TopicSpec(name, 2), single_broker=True).items() if key != TIMESTAMPS}
            made.append(NewTopic(here.settings.topic(name), 2, 1, config=config))
        for future in admin.create_topics(made).values():
            future.result()

        applied = verb(here, capsys, "topics", "apply", "--ledger-partitions", "2", "--request-partitions", "2")
        checked = verb(here, capsys, "topics", "check")
        code, found = doctor(here, capsys, "--quick")

    said = (
        "hypervisor-audits, claims: records have the times of their writers' clocks (message.timestamp.type=CreateTime): where one of "
        "those is wrong, claims are confirmed, and expire, too early or too late"
    )
    mended = "kafka-configs.sh --alter --topic PREFIX.TOPIC --add-config message.timestamp.type=LogAppendTime"
    for exited, each, err in (applied, checked):
        differ = {topic: what for topic, what in each.items() if what != "as needed"}
        assert (exited, differ) == (0, dict.fromkeys(of_writers, "message.timestamp.type is CreateTime, which is for mirrors"))
        assert err.startswith(f"{said}; {mended}, for each, unless this is a mirror or a restored archive")
    assert (code, found["settings"][0], found["times"]) == (0, "ok", ("warn", said))


def test_a_copy_made_by_claimlog_is_not_told_to_have_the_times_of_writers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {})
    with shared_site(tmp_path) as here:
        copied = fleet.run(capsys, "copy", here.spec)
        checked = verb(here, capsys, "topics", "check")
        _, found = doctor(here, capsys, "--quick")

    assert copied.code == 0, copied.err
    assert (checked[0], set(checked[1].values()), checked[2]) == (0, {"as needed"}, "")
    assert "times" not in found
    assert found["settings"][0] == "ok"


def test_topics_with_the_times_of_writers_are_counted_where_they_are_many_beside_what_is_wrong() -> None:
    compared = [TopicDifference(name, TIMESTAMPS, "LogAppendTime", "CreateTime", is_of_mirrors=True) for name in topics.TOPICS]
    compared.append(TopicDifference(topics.CLAIMS, "partitions", "4", "3"))

    checks = [checks_cluster.settings(compared), *checks_cluster.times(compared)]

    assert [(check.status, check.says.partition(": ")[0]) for check in checks] == [
        ("fail", "topic 'claims'"),
        ("warn", f"{', '.join(list(topics.TOPICS)[:3])} and {len(topics.TOPICS) - 3} more"),
    ]
    assert "partitions is 3, not 4" in checks[0].says
    assert "CreateTime" not in checks[0].says


@pytest.mark.parametrize(
    ("cluster", "status", "says"),
    [
        (SOUND, "ok", "3 brokers, 40 partitions, each with all its copies"),
        (replace(SOUND, thin=PLACES[:1]), "warn", "3 brokers, 40 partitions; copies are missing of claims/0"),
        (
            replace(SOUND, thin=PLACES[:2], refusing=PLACES[:1]),
            "fail",
            "3 brokers, 40 partitions; too few copies for any writing: claims/0",
        ),
        (
            replace(SOUND, brokers=1, leaderless=PLACES, thin=PLACES),
            "fail",
            "1 broker, 40 partitions; without a leader: claims/0, claims/1, claims/2 and 2 more",
        ),
    ],
)
def test_partitions_that_lack_copies_or_a_leader_are_named(cluster: Cluster, status: str, says: str) -> None:
    check = checks_cluster.brokers(cluster)

    assert (check.status, check.says) == (status, says)


def test_groups_that_are_kept_on_one_broker_only_are_named_where_there_are_more() -> None:
    found = [list(checks_cluster.offsets(replace(SOUND, brokers=brokers, offsets_copies=1))) for brokers in (1, 3)]

    assert found[0] == []
    assert [(check.status, check.says.partition(":")[0]) for check in found[1]] == [("warn", "__consumer_offsets has 1 copy")]


def test_a_program_of_others_in_a_group_that_keeps_offsets_is_named() -> None:
    found = list(checks_cluster.strangers([Members("fleet.watcher", "missing", ()), Members("fleet.reconciler", "stable", ("kcat",))]))

    assert [(check.status, check.says) for check in found] == [
        ("fail", "kcat has joined group fleet.reconciler, where claimlog keeps how far it has read")
    ]


def test_partitions_that_are_nobodys_though_somebody_is_there_are_a_warning() -> None:
    places = [Partition("stream-partitions", number) for number in range(2)]
    groups = [
        Members("g", "stable", ("a",), frozenset(places)),
        Members("g", "empty", ()),
        Members("g", "preparing_rebalancing", ("a",)),
        Members("g", "stable", ("a", "b"), frozenset(places[:1])),
    ]

    found = [list(checks_cluster.nobodys(group, places)) for group in groups]

    assert found[:3] == [[], [], []]
    assert [(check.status, check.says) for check in found[3]] == [("warn", "stream-partitions/1: nobody's, though there are 2 in group g")]


def test_schedulers_of_one_name_are_told() -> None:
    found = [list(checks_cluster.namesakes(Members("fleet.lease", "stable", names))) for names in (("s1", "s2"), ("s1", "s1", "s2"))]

    assert found[0] == []
    assert [(check.status, check.says.partition(";")[0]) for check in found[1]] == [("warn", "several are called s1")]


def test_a_group_that_shares_out_just_now_is_a_warning() -> None:
    check = checks_cluster.members("workers", Members("fleet.stream-processor", "preparing_rebalancing", ("a", "b")), "")

    assert (check.status, check.says) == ("warn", "2 in group fleet.stream-processor, which is preparing rebalancing")
