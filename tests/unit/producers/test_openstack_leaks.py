"""Leaks of a cloud that is followed: what Nova tracks is no ghost, though nobody of ours claimed it; what audits differ in is found."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.cli_log import START_MS, FleetLog
from tests.nova_cloud import LARGE, NovaCloud, Sent
from tests.nova_following import by_publisher

H1, H2 = "h1.example.org", "h2.example.org"


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    return FleetLog(tmp_path)


def follow(fleet: FleetLog, capsys: pytest.CaptureFixture[str], messages: Iterable[Sent]) -> None:
    """What Nova's services said, as a file, into the log and on into the ledger."""
    file = fleet.path.parent / "nova.jsonl"
    queues = by_publisher(list(messages))
    file.write_bytes(b"".join(sent.value + b"\n" for queue in reversed(queues) for sent in queue))
    assert fleet.run(capsys, "produce", "openstack", "--from", str(file)).code == 0
    fleet.carry()


def cloud() -> NovaCloud:
    """One whose clock runs before the audits of `FleetLog`."""
    return NovaCloud(start_ms=START_MS - 3_600_000)


def audit(fleet: FleetLog, **instances: dict[str, int]) -> None:
    """Complete audits of both hosts, a minute apart, twice: what they show and omit is confirmed."""
    for _ in range(2):
        fleet.now_ms += 60_000
        for host in ("h1", "h2"):
            fleet.audit(f"{host}.example.org", instances.get(host, {}))


def findings(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, str, str, str]]:
    items = fleet.run(capsys, "leaks", "-o", "json").json["items"]
    return sorted((item["kind"], item["node_id"], item["instance_id"], item["state"]) for item in items)


def test_a_cloud_that_is_as_its_records_say_has_no_findings(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    nova = cloud()
    follow(fleet, capsys, [*nova.create("a", "h1"), *nova.create("b", "h2", LARGE), *nova.live_migrate("b", "h1")])

    before = findings(fleet, capsys)
    audit(fleet, h1={"a": 512, "b": 4096})

    assert before == findings(fleet, capsys) == []
    assert fleet.run(capsys, "leaks").code == 0


def test_a_guest_that_was_live_migrated_is_not_on_its_way_any_more(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    """The last word on it comes from the source, which still calls it `migrating`."""
    nova = cloud()
    follow(fleet, capsys, [*nova.create("a", "h2"), *nova.create("b", "h1", LARGE), *nova.live_migrate("b", "h2")])

    audit(fleet, h2={"a": 512, "b": 2048})

    assert findings(fleet, capsys) == [("size-drift", H2, "b", "confirmed")]
    assert fleet.run(capsys, "leaks").code == 3


def test_a_guest_that_no_record_knows_is_found(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    nova = cloud()
    follow(fleet, capsys, nova.create("a", "h1"))

    audit(fleet, h1={"a": 512, "behind-its-back": 2048})

    assert findings(fleet, capsys) == [("ghost-instance", H1, "behind-its-back", "confirmed")]


def test_a_record_without_a_guest_is_found(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    nova = cloud()
    follow(fleet, capsys, [*nova.create("a", "h1"), *nova.create("b", "h1")])

    audit(fleet, h1={"b": 512})

    assert [found[1:] for found in findings(fleet, capsys)] == [(H1, "a", "confirmed")]


def test_an_evacuated_guest_that_still_runs_on_its_old_host_is_found_when_that_is_back(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    nova = cloud()
    follow(fleet, capsys, [*nova.create("b", "h2"), *nova.create("a", "h1"), *nova.evacuate("a", "h2")])

    audit(fleet, h1={"a": 512}, h2={"a": 512, "b": 512})

    assert findings(fleet, capsys) == [("ghost-instance", H1, "a", "confirmed")]
