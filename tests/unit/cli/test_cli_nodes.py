"""`claimlog nodes`: the numbers are those of the fold, at any moment, whether a host carries observations into the ledger or not."""

from __future__ import annotations

from collections.abc import Container
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from schemas.audits import InstanceReport
from schemas.lifecycle import InstanceArrived, InstanceDeparted
from schemas.resources import ObservedResources
from schemas.topics import AUDITS, LIFECYCLE
from streams.cli.main import run
from streams.cli.reading.state_at import state_at
from streams.log.base import NO_RECORD, Message, Record, TopicSpec
from streams.log.jsonl import write_jsonl
from streams.log.sqlite import SqliteLog
from tests.cli_log import START_MS, FleetLog


def test_a_node_shows_limit_views_gap_and_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.lived("c01", "i1", 1024, InstanceArrived)
    fleet.lived("c01", "i2", 2048, InstanceArrived)
    fleet.audit("c01", {"i1": 1024})
    fleet.claim("r1/0/s-1.1", "i9", "c01", memory_mib=512)

    said = fleet.run(capsys, "nodes", "-o", "json")

    assert said.code == 0
    (node,) = said.json["items"]
    assert (node["node_id"], node["claims"], node["status"]) == ("c01", 1, "enabled")
    memory = node["memory_mib"]
    assert (memory["limit"], memory["reported"], memory["claimed"]) == (8192, 1024, 512)
    assert memory["gap"] == memory["tracked"] - memory["reported"]
    assert memory["free"] == memory["limit"] - memory["used"]
    assert said.json["cut"].startswith("cut:")


def test_a_view_without_a_source_is_unknown_and_not_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"i1": 1024})

    (node,) = fleet.run(capsys, "nodes", "-o", "json").json["items"]

    assert (node["memory_mib"]["tracked"], node["memory_mib"]["gap"], node["memory_mib"]["reported"]) == (None, None, 1024)


def test_observations_that_nobody_carried_are_included_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"i1": 1024}, carry=False)

    said = fleet.run(capsys, "nodes", "-o", "json")

    assert [node["node_id"] for node in said.json["items"]] == ["c01"]
    assert said.json["items"][0]["memory_mib"]["reported"] == 1024
    assert "1 observation not yet in the ledger is included" in said.err


def test_an_answer_with_pending_observations_is_the_same_again_at_its_cut_after_they_were_carried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"i1": 1024})
    fleet.audit("c01", {"i1": 1024, "i2": 512}, carry=False)
    fleet.audit("c02", {}, carry=False)
    first = fleet.run(capsys, "nodes", "-o", "json").json
    fleet.carry()
    fleet.audit("c01", {})

    again = fleet.run(capsys, "nodes", "-o", "json", "--at", first["cut"]).json

    ages = [node.pop("audit_age_ms") for answer in (first, again) for node in answer["items"]]
    assert all(age is not None for age in ages)
    assert again == first
    assert fleet.run(capsys, "nodes", "-o", "json").json["items"][0]["memory_mib"]["reported"] == 0


def test_observations_that_left_the_log_before_anybody_carried_them_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"i1": 1024})
    fleet.audit("c01", {"i1": 1024, "i2": 512}, carry=False)
    number = fleet.log.partition("hypervisor-audits", b"c01")
    fleet.log.truncate("hypervisor-audits", number, 2)

    said = fleet.run(capsys, "nodes", "-o", "json")
    fleet.audit("c01", {"i2": 512})

    assert said.json["items"][0]["memory_mib"]["reported"] == 1024
    assert "1 observation left the log before the ledger had what they said" in said.err
    assert "left the log" not in fleet.run(capsys, "nodes").err


def test_offsets_without_a_record_among_what_is_not_carried_yet_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"i1": 1024})
    number = fleet.log.partition("hypervisor-audits", b"c01")
    fleet.log.append([Message("hypervisor-audits", b"", b"", NO_RECORD, number)] * 30)
    fleet.audit("c01", {"i2": 512}, carry=False)

    said = fleet.run(capsys, "nodes")
    fleet.carry()

    lacking = f"hypervisor-audits/{number}: the offsets from 1 to 30 have no record, and were not carried into the ledger: "
    assert lacking in said.err
    assert "no record" not in fleet.run(capsys, "nodes").err


def test_what_was_carried_twice_is_counted_once_and_not_pending(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"i1": 1024})
    fleet.log.commit("reconciler", "hypervisor-audits", {0: 0, 1: 0})

    said = fleet.run(capsys, "nodes", "-o", "json")

    assert said.json["items"][0]["memory_mib"]["reported"] == 1024
    assert "not yet in the ledger" not in said.err


def test_a_log_that_was_never_opened_but_has_observations_answers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path, opened=False)
    fleet.log.create([TopicSpec("hypervisor-audits", 2)])
    fleet.audit("c01", {"i1": 1024}, carry=False)

    said = fleet.run(capsys, "nodes", "-o", "json")

    assert [node["memory_mib"]["reported"] for node in said.json["items"]] == [1024]


def test_an_empty_log_says_what_makes_a_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = FleetLog(tmp_path, opened=False).run(capsys, "nodes")

    assert (said.code, said.out) == (1, "")
    assert "this log has no ledger" in said.err


def test_a_time_before_a_claim_shows_the_node_without_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {})
    before_ms = fleet.now_ms + 500
    fleet.claim("r1/0/s-1.1", "i1", "c01")

    then = fleet.run(capsys, "nodes", "-o", "json", "--at", str(before_ms)).json["items"][0]
    now = fleet.run(capsys, "nodes", "-o", "json").json["items"][0]

    assert (then["claims"], now["claims"]) == (0, 1)
    assert then["audit_age_ms"] == 500
    assert before_ms > START_MS


def test_names_and_patterns_choose_nodes_and_an_unknown_one_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    for node_id in ("c01", "c02", "d01"):
        fleet.audit(node_id, {})

    assert fleet.run(capsys, "nodes", "c*", "-o", "value", "-c", "node_id").out == "c01\nc02\n"
    said = fleet.run(capsys, "nodes", "e01")
    assert said.code == 2
    assert "node 'e01' is not known; known: c01, c02, d01" in said.err


def test_columns_of_resources_can_be_chosen_and_sorted_by(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {}, memory_mib=1000)
    fleet.audit("c02", {}, memory_mib=3000)

    said = fleet.run(capsys, "nodes", "-o", "value", "-c", "node_id", "-c", "memory_mib.free", "--sort", "-memory_mib.free")

    assert said.out == "c02\t3000\nc01\t1000\n"


def test_the_table_has_units_and_the_cut_goes_to_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"i1": 1204})

    said = fleet.run(capsys, "nodes")

    heading, line = said.out.splitlines()
    assert heading.split()[:3] == ["node", "status", "zone"]
    assert "8 GiB" in line
    assert "1,204 MiB" in line
    assert said.err.startswith("cut:")


def test_the_zone_is_every_zone_that_a_node_is_in_and_its_published_row_has_the_setting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetLog(tmp_path)
    for name in ("c01", "c02", "c03"):
        fleet.audit(name, {})
    settings = tmp_path / "fleet.toml"
    settings.write_text(
        '[nodes.c01]\nzone = "north"\n[aggregates.edge]\nnodes = ["c01", "c02"]\nmetadata = { availability_zone = "far, further" }\n'
    )
    fleet.run(capsys, "fleet", "apply", str(settings))

    table = fleet.run(capsys, "nodes", "-c", "zone", "--no-headers").out
    values = fleet.run(capsys, "nodes", "-o", "value", "-c", "zone").out
    shown = fleet.run(capsys, "node", "show", "c02").out
    (item,) = fleet.run(capsys, "node", "show", "c01", "-o", "json").json["items"]
    setting = fleet.run(capsys, "fleet", "show", "-o", "value", "-c", "zone").out
    state = state_at(fleet.log)

    assert table == "far,further,north\nfar,further\n-\n"
    assert values == "far,further,north\nfar,further\n\n"
    assert "zone        far,further\n" in shown
    assert item["zone"] == "far,further,north"
    assert setting == "north\n\n\n"
    assert [row.zone for row in state.rows(state.node_ids()).values()] == ["north", "", ""]


def test_what_hosts_report_is_laid_on_in_the_order_of_the_log_though_a_brokers_clock_went_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {})
    for instance_id in ("i1", "i2"):
        fleet.lived("c01", instance_id, 1024, carry=False)
    read = fleet.log.read

    def set_back(topic: str, *args: Any, **options: Any) -> list[Record]:
        """Each record of a topic a second before the one in front of it."""
        records = read(topic, *args, **options)
        return records if topic != LIFECYCLE else [replace(each, time_ms=START_MS + 9_000 - 1_000 * each.offset) for each in records]

    monkeypatch.setattr(fleet.log, "read", set_back)
    before = state_at(fleet.log)
    fleet.carry()
    after = state_at(fleet.log)

    assert (before.pending, after.pending) == (2, 0)
    for state in (before, after):
        nodes = [node for ledger in state.ledgers.values() for node in ledger.nodes.values()]
        assert [sorted(node.shown) for node in nodes] == [["i1", "i2"]]


def test_the_cut_of_another_log_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "long").mkdir()
    (tmp_path / "short").mkdir()
    long, short = FleetLog(tmp_path / "long"), FleetLog(tmp_path / "short")
    long.audit("c01", {})
    cut = long.run(capsys, "nodes", "-o", "json").json["cut"]

    said = short.run(capsys, "nodes", "--at", cut)

    assert (said.code, said.out) == (2, "")
    assert "this cut was taken on another log" in said.err


def test_a_cut_beyond_the_end_of_a_copy_is_incomplete_and_not_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {})
    copy = tmp_path / "copy.jsonl"
    copied(fleet, copy)
    early = fleet.run(capsys, "nodes", "-o", "json").json["cut"]
    fleet.claim("r1/0/s-1.1", "i1", "c01")
    late = fleet.run(capsys, "nodes", "-o", "json").json["cut"]

    codes = [run(["nodes", "--log", str(copy), "--at", cut]) for cut in (early, late)]

    assert codes == [0, 6]
    assert "the cut includes claims/" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("nodes",), ("replay",), ("replay", "--verify"), ("leaks",), ("claims", "list")])
def test_a_gap_in_a_file_is_incomplete_and_names_the_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    fleet = FleetLog(tmp_path)
    for each in range(6):
        fleet.audit("c01", {f"i{each}": 512})
    number = fleet.log.partition("claims", b"c01")
    holey = tmp_path / "holey.jsonl"
    copied(fleet, holey, without={("claims", number, 2), ("claims", number, 3)})

    code = run([*arguments, "--log", str(holey)])

    printed = capsys.readouterr()
    assert (code, printed.out) == (6, "")
    assert f"claims/{number}: records 2 to 3 are missing" in printed.err


def copied(fleet: FleetLog, path: Path, without: Container[tuple[str, int, int]] = ()) -> None:
    """All records of a log as lines of JSON, as kcat prints them: nobody says there which log it was, but its first record does."""
    records = [
        record
        for topic in fleet.log.topics()
        for number in range(fleet.log.topics()[topic])
        for record in fleet.log.read(topic, number, fleet.log.start(topic, number), 10_000)
        if record.position not in without
    ]
    with path.open("wb") as stream:
        write_jsonl(records, stream)


def test_a_gap_is_a_departure_that_never_came(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.lived("c01", "i1", 4096, InstanceArrived)
    fleet.audit("c01", {"i1": 4096})
    fleet.now_ms += 60_000
    fleet.audit("c01", {})

    (leaking,) = fleet.run(capsys, "nodes", "-o", "json").json["items"]
    fleet.lived("c01", "i1", 4096, InstanceDeparted)
    (mended,) = fleet.run(capsys, "nodes", "-o", "json").json["items"]

    assert leaking["memory_mib"]["gap"] == 4096
    assert mended["memory_mib"]["gap"] == 0


def test_a_log_that_is_not_there_exits_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.spec = f"sqlite:{tmp_path / 'other.db'}"

    assert fleet.run(capsys, "nodes").code == 5
    assert isinstance(fleet.log, SqliteLog)


def test_a_file_of_json_lines_answers_like_the_log_it_came_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"i1": 1024})
    fleet.audit("c02", {"i2": 512}, carry=False)
    fleet.claim("r1/0/s-1.1", "i9", "c01")
    topics = fleet.log.topics()
    records = [record for topic in topics for number in range(topics[topic]) for record in fleet.log.read(topic, number, 0)]
    with (tmp_path / "log.jsonl").open("wb") as lines:
        write_jsonl(records, lines, [TopicSpec(name, count) for name, count in topics.items()])
    live = fleet.run(capsys, "nodes", "-o", "json").json

    fleet.spec = str(tmp_path / "log.jsonl")
    read = fleet.run(capsys, "nodes", "-o", "json").json

    ages = [node.pop("audit_age_ms") for answer in (live, read) for node in answer["items"]]
    assert len(ages) == 4
    assert read == live


def test_history_that_left_the_log_is_missed_and_found_again_in_its_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"i1": 1024})
    early = fleet.run(capsys, "nodes", "-o", "json").json
    fleet.audit("c02", {})
    late = fleet.run(capsys, "nodes", "-o", "json").json
    assert fleet.run(capsys, "archive", str(tmp_path / "history"), "--below", "now").code == 0

    present = fleet.run(capsys, "nodes", "-o", "json").json
    without = fleet.run(capsys, "nodes", "--at", early["cut"])
    monkeypatch.setenv("CLAIMLOG_ARCHIVE", str(tmp_path / "history"))
    again = fleet.run(capsys, "nodes", "--at", early["cut"], "-o", "json").json

    assert without_ages(present) == without_ages(late)
    assert (without.code, without.out) == (6, "")
    assert without_ages(again) == without_ages(early)


def without_ages(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name != "audit_age_ms"} for item in answer["items"]]


@pytest.mark.parametrize("verb", [("nodes",), ("fleet", "show"), ("diff", "--at", "now")])
def test_names_may_stand_before_and_behind_flags(verb: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    for node_id in ("c01", "c02", "c03"):
        fleet.audit(node_id)

    said = fleet.run(capsys, *verb, "c03", "-o", "json", "c01")
    other = fleet.run(capsys, *verb, "c03", "-o", "json", "c04")
    too_many = fleet.run(capsys, "node", "show", "c01", "-o", "json", "c02")

    assert (said.code, said.err) == (0, "")
    assert {item["node_id"] for item in said.json["items"]} == ({"c01", "c03"} if verb[0] != "diff" else set())
    assert (other.code, "'c04' is not known" in other.err) == (2, True)
    assert (too_many.code, too_many.err) == (2, "claimlog: one word too many: 'c02'\nSee: claimlog node show --help\n")


def test_a_part_that_the_first_node_lacks_may_be_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    fleet.run(capsys, "node", "disable", "a01", "--reason", "not there yet", "--new")

    unknown = fleet.run(capsys, "nodes", "-o", "value", "-c", "node_id", "-c", "memory_mib.total")
    mistyped = fleet.run(capsys, "nodes", "-o", "value", "-c", "memory_mib.totl")
    mixed = fleet.run(capsys, "events", "-o", "value", "-c", "record.outcome", "-c", "record.node_id", "--sort", "record.node_id")

    assert (unknown.code, unknown.out) == (0, "a01\t\nc01\t8192\n")
    assert (mistyped.code, "there is no column 'memory_mib.totl'" in mistyped.err) == (2, True)
    assert (mixed.code, mixed.out.splitlines()[:2]) == (0, ["\ta01", "\tc01"])


def test_an_owners_word_that_the_ledger_ignores_and_the_views_heed_is_in_the_answer_and_in_its_cut(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nova counts a guest from before an audit that omits it, and the word is not carried yet."""
    fleet.audit("n9", {"x": 512})
    fleet.lived("n9", "x", 512)
    before = fleet.run(capsys, "nodes", "-o", "json").json["cut"]
    event_ms = fleet.now_ms
    fleet.audit("n9", {"x": 512})
    report = InstanceReport(instance_id="b", resources=ObservedResources(memory_mib=2048))
    word = InstanceArrived(node_id="n9", producer="lives", epoch=1, counter=99, event_time_ms=event_ms, instance=report)
    fleet.append(LIFECYCLE, word)

    def tracked(*flags: str) -> tuple[int, str]:
        said = fleet.run(capsys, "nodes", "-o", "json", *flags)
        rows = {item["node_id"]: item for item in said.json["items"]}
        return rows["n9"]["memory_mib"]["tracked"], said.json["cut"]

    now, cut = tracked()
    remark = fleet.run(capsys, "nodes").err
    pending = fleet.run(capsys, "diff", "--at", before, "-o", "json")
    leaks = [fleet.run(capsys, "leaks", "-c", "finding_id", "-o", "value", *flags) for flags in ([], ["--at", cut])]
    fleet.carry()
    carried = fleet.run(capsys, "diff", "--at", before, "-o", "json")

    assert (now, tracked("--at", cut), tracked()[0]) == (2560, (2560, cut), 2560)
    assert "1 observation not yet in the ledger is included" in remark
    assert pending.code == carried.code == 3
    assert pending.json["items"] == carried.json["items"]
    assert [said.code for said in leaks] == [3, 3]
    assert leaks[0].out == leaks[1].out
    assert "stale-instance/n9/b" in leaks[0].out


def test_an_observation_that_cannot_be_read_is_told_of_until_it_has_its_letter(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.log.append([Message(AUDITS, b"n9", b"{") for _ in range(3)])
    before = fleet.run(capsys, "nodes").err
    fleet.carry()
    fleet.audit("n9", carry=False)

    after = fleet.run(capsys, "nodes").err

    assert "3 observations cannot be read" in before
    assert "1 observation not yet in the ledger is included" in after
    assert "cannot be read" not in after
