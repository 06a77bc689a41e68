"""`claimlog place` and `cancel`: a request goes into the log and the result that counts comes out, or the reasons do."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from projections.reading import HistoryMissing
from schemas.claims import NodeConfigured
from schemas.codec import decode, encode
from schemas.inventory import OperatorFields, ResourceRule
from schemas.requests import Flavor, PlacementRequested
from schemas.resources import Limits
from schemas.topics import CLAIMS, REQUESTS
from streams.cli import place
from streams.cli.main import run
from streams.cli.printed import units
from streams.cli.reading.answers import awaited
from streams.cli.writing import appended
from streams.ledger_topics import open_ledger
from streams.log.base import Log, LogUnreachable, Message, Position
from streams.log.memory import MemoryLog
from streams.log.sqlite import SqliteLog
from streams.operator import Stamp, ask
from streams.scheduler import Scheduler
from tests.cli_log import PARTITIONS, FleetLog


@contextmanager
def scheduling(fleet: FleetLog) -> Iterator[None]:
    """A scheduler on a log of its own, in a thread, as long as the block lasts."""
    stop = threading.Event()

    def work() -> None:
        with SqliteLog.open(fleet.path) as log:
            scheduler = Scheduler(log, "s1")
            while not stop.is_set():
                scheduler.turn(timeout_seconds=0.02)
            scheduler.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=10)


def requests(fleet: FleetLog) -> list[PlacementRequested]:
    records = [record for number in range(PARTITIONS) for record in fleet.log.read(REQUESTS, number, 0)]
    return [event for record in records if isinstance(event := decode(REQUESTS, record.value), PlacementRequested)]


def test_a_request_that_fits_prints_where_its_instances_go(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    with scheduling(fleet):
        said = fleet.run(capsys, "place", "--vcpus", "2", "--memory", "6GiB", "-o", "json")

    assert said.code == 0
    (placement,) = said.json["items"]
    assert placement["node_id"] == "c01"
    assert placement["resources"] == {"vcpus": 2, "pcpus": 0, "memory_mib": 6144, "disk_mib": 0}
    assert said.json["summary"]["outcome"] == "placed"
    (claim,) = fleet.run(capsys, "claims", "list", "-o", "json").json["items"]
    assert (claim["claim_id"], claim["memory_mib"]) == (placement["claim_id"], 6144)


def test_a_request_that_does_not_fit_exits_4_with_numbers_that_add_up(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    with scheduling(fleet):
        said = fleet.run(capsys, "place", "--memory", "9GiB")

    assert said.code == 4
    assert "not placed (no-valid-node)" in said.out
    assert "2 nodes known" in said.out
    assert "2 = 2 rejected + 0 left" in said.out
    assert "closest: c01, if not for memory_mib: 9216 needed, the whole node has 8192" in said.out
    assert "cut:" in said.err


def test_the_closest_node_is_said_to_be_too_small_by_its_limit_as_explain_says_it(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    for node_id in ("c01", "c02"):
        fields = OperatorFields(memory_mib=ResourceRule(reserved=10_000))
        fleet.append(CLAIMS, NodeConfigured(node_id=node_id, record_id=f"reserved {node_id}", fields=fields))
    with scheduling(fleet):
        said = fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r1")

    closest = "closest: c01, if not for memory_mib: 1024 needed, the node's limit is -1808"
    assert closest in said.out
    assert closest in fleet.run(capsys, "explain", "r1").out


def test_the_request_s_own_limit_is_said_to_be_too_low_as_explain_says_it(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    file = fleet.path.parent / "r.json"
    asked = PlacementRequested(request_id="r1", flavor=Flavor(memory_mib=2048), limits=Limits(memory_mib=1000), requested_nodes=("c01",))
    file.write_bytes(encode(asked))
    with scheduling(fleet):
        said = fleet.run(capsys, "place", str(file))

    closest = "closest: c01, if not for memory_mib: 2048 needed, the request's own limit is 1000"
    assert closest in said.out
    assert closest in fleet.run(capsys, "explain", "r1").out


def test_reasons_are_told_also_where_the_ledger_cannot_be_folded_for_what_leaks_hold(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object) -> None:
        raise HistoryMissing("the records below 7 were archived")

    monkeypatch.setattr("streams.cli.place.state_at", missing)
    with scheduling(fleet):
        said = fleet.run(capsys, "place", "--memory", "9GiB")

    assert said.code == 4
    assert "closest: c01" in said.out
    assert "whether leaks are in the way is not known: the records below 7 were archived" in said.out


def test_as_json_the_reasons_are_the_decision(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    with scheduling(fleet):
        said = fleet.run(capsys, "place", "--memory", "9GiB", "-o", "json")

    assert said.code == 4
    (decision,) = said.json["items"]
    assert decision["nodes_known"] == sum(each["rejected"] for each in decision["rejections"]) + decision["passed"] == 2
    assert decision["nearest_miss"]["node_id"] == "c01"
    assert said.json["summary"]["reason"] == "no-valid-node"


def test_without_a_scheduler_it_says_what_to_check_and_how_to_take_the_request_back(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r9", "--wait", "50ms")

    assert (said.code, said.out) == (1, "")
    assert "no answer to r9 within 50ms. Is a scheduler on this log?" in said.err
    assert "claimlog cancel r9" in said.err


def test_a_request_whose_answer_nobody_waits_for_is_named_in_the_form_asked_for(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("place", "--memory", "1GiB", "--wait", "0s", "--request")

    words, document = fleet.run(capsys, *place, "r1"), fleet.run(capsys, *place, "r2", "-o", "json")
    other = fleet.run(capsys, *place, "r3", "-c", "instance_id")

    assert words.out == "r1\n"
    assert [(item["request_id"], item["position"].partition("/")[0]) for item in document.json["items"]] == [("r2", "placement-requests")]
    assert (other.code, len(requests(fleet))) == (2, 2), "a column that only an answer has is refused before anything is asked"


def test_the_same_request_asked_again_has_the_same_answer(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r9", "--wait", "0s")
    fleet.schedule()

    first = fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r9", "-o", "json")
    again = fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r9", "-o", "json")

    assert first.code == 0
    assert first.json["items"] == again.json["items"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--policy", "affinity"], "name it with --group"),
        (["--ttl", "0s"], "its claims would be gone before an instance could start"),
        (["--instance", "0A4B6C8D-0000-4000-8000-000000000001"], "small letters; write it so: 0a4b6c8d-0000-4000-8000-000000000001"),
    ],
)
def test_flags_that_would_change_nothing_or_keep_nothing_are_refused(
    flags: list[str], said: str, fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = fleet.run(capsys, "place", "--vcpus", "1", "--wait", "0s", *flags)

    assert (refused.code, refused.out) == (2, "")
    assert said in refused.err


@pytest.mark.parametrize("answered", [False, True])
def test_an_id_that_stands_for_another_request_is_refused(fleet: FleetLog, capsys: pytest.CaptureFixture[str], *, answered: bool) -> None:
    fleet.run(capsys, "place", "--vcpus", "1", "--memory", "512", "--request", "dup", "--wait", "0s")
    if answered:
        fleet.schedule()

    said = fleet.run(capsys, "place", "--vcpus", "4", "--memory", "512", "--ttl", "5m", "--request", "dup")

    assert (said.code, said.out) == (2, "")
    assert "request dup was asked before" in said.err
    assert "1 vCPUs, 512 MiB" in said.err
    assert "differs in flavor, ttl_ms; use another --request" in said.err
    assert len(requests(fleet)) == 1


@pytest.mark.parametrize(("flags", "code"), [(("--memory", "1GiB"), 0), (("--memory", "2GiB"), 2)])
def test_of_two_who_ask_at_once_with_one_id_the_second_hears_if_it_is_another_request(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...], code: int
) -> None:
    first = PlacementRequested(request_id="r", flavor=Flavor(memory_mib=1024))

    def meanwhile(request: PlacementRequested, stamp: Stamp) -> Message:
        """Between the look for an earlier request and the append of this one somebody else is quicker."""
        fleet.append(REQUESTS, first)
        return ask(request, stamp)

    monkeypatch.setattr("streams.cli.place.ask", meanwhile)
    said = fleet.run(capsys, "place", *flags, "--request", "r", "--wait", "0s")

    assert said.code == code
    assert ("this one differs in flavor; use another --request" in said.err) == bool(code)


def test_who_asks_again_hears_the_answer_though_somebody_asks_for_something_else_with_that_id_meanwhile(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.append(REQUESTS, PlacementRequested(request_id="r", flavor=Flavor(memory_mib=1024)))

    def meanwhile(request: PlacementRequested, stamp: Stamp) -> Message:
        fleet.append(REQUESTS, PlacementRequested(request_id="r", flavor=Flavor(memory_mib=2048)))
        return ask(request, stamp)

    monkeypatch.setattr("streams.cli.place.ask", meanwhile)

    assert fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r", "--wait", "0s").code == 0


def test_every_flag_is_in_the_request(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--vcpus", "4", "--memory", "4096", "--disk", "40GiB", "--ephemeral", "10", "--swap", "512MiB", "--flavor", "m1"]
    flags += ["--count", "2", "--instance", "i1", "--instance", "i2", "--zone", "east", "--group", "db", "--policy", "affinity"]
    flags += ["--hint", "different_host=i7", "--hint", "different_host=i8", "--hint", "colour=red", "--trait", "A", "--trait", "!B"]
    flags += ["--ttl", "5m", "--on", "c01", "--on", "c02", "--avoid", "c03", "--request", "r1", "--wait", "0s"]

    assert fleet.run(capsys, "place", *flags).out == "r1\n"

    (request,) = requests(fleet)
    assert (request.resources.vcpus, request.resources.memory_mib, request.resources.disk_mib) == (4, 4096, 50 * 1024 + 512)
    assert (request.count, request.instance_ids, request.availability_zone, request.ttl_ms) == (2, ("i1", "i2"), "east", 300_000)
    assert request.group is not None
    assert (request.group.group_id, request.group.policy) == ("db", "affinity")
    assert (request.hints.different_host, request.hints.other) == (("i7", "i8"), {"colour": "red"})
    assert (request.traits_required, request.traits_forbidden) == (("A",), ("B",))
    assert (request.requested_nodes, request.ignored_nodes, request.flavor.name) == (("c01", "c02"), ("c03",), "m1")


def test_a_request_may_be_json(fleet: FleetLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "request.json"
    file.write_bytes(msgspec.json.encode({"flavor": {"memory_mib": 512}, "count": 3}))

    said = fleet.run(capsys, "place", str(file), "--wait", "0s", "--request", "r5")

    assert said.code == 0
    (request,) = requests(fleet)
    assert (request.request_id, request.count, request.flavor.memory_mib) == ("r5", 3, 512)


def test_a_hyphen_is_the_request_on_stdin(fleet: FleetLog, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"flavor": {"memory_mib": 512}}')))

    assert fleet.run(capsys, "place", "-", "--wait", "0s", "--request", "r5").code == 0

    (request,) = requests(fleet)
    assert (request.request_id, request.flavor.memory_mib) == ("r5", 512)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "nothing is asked for"),
        (["--memory", "4.5MiB"], "only whole MiB"),
        (["--memory", "lots"], "write an amount such as 4GiB"),
        (["--memory", "1GiB", "--disk", "512MiB"], "whole GiB"),
        (["--memory", "1GiB", "--count", "0"], "expected 1 to 1000 instances"),
        (["--memory", "1GiB", "--hint", "red"], "expected KEY=VALUE"),
        (["--memory", "1GiB", "--hint", "group=db"], "a server group is named by --group"),
        (["--memory", "1GiB", "--hint", "diferent_host=i1"], "did you mean different_host?"),
        (["--memory", "1GiB", "--hint", "Query=[]"], "did you mean query?"),
        (["--memory", "1GiB", "--hint", "other=red", "--hint", "other=blue"], "other is given twice, and has one value"),
        (["--memory", "1GiB", "--hint", "cidr=/24", "--hint", "cidr=/16"], "cidr is given twice, and has one value"),
        (["--memory", "1GiB", "--request", ""], "leave --request out and one is made"),
        (["--memory", "1GiB", "--ttl", "99999999d"], "too long: at most 13031248d"),
        (["--vcpus", "-1"], "expected 0 or more"),
        (["--vcpus", "1.5", "--memory", "1GiB"], "'1.5' is no whole number"),
        (["--memory", "1GiB", "--count", "2.0"], "'2.0' is no whole number"),
        (["--vcpu", "3", "--memory", "1GiB"], "there is no flag --vcpu"),
        (["--memory", "1GiB", "--instance", "i1", "--count", "2"], "expected 2 different ids (or none), got 1"),
        (["nowhere.json"], "nowhere.json: No such file"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_and_not_written(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    said = fleet.run(capsys, "place", *flags)

    assert (said.code, said.out) == (2, "")
    assert message in said.err
    assert requests(fleet) == []


def test_a_field_that_no_request_has_is_named(fleet: FleetLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "request.json"
    file.write_text('{"flavor": {"ram": 1}}')

    said = fleet.run(capsys, "place", str(file))

    assert said.code == 2
    assert "unknown field `ram` - at `$.flavor`" in said.err


def test_an_id_cannot_move_the_cursor(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r\x1b[2J\n9", "--wait", "1ms")
    refused = fleet.run(capsys, "place", "--memory", "2GiB", "--request", "r\x1b[2J\n9", "--wait", "1ms")

    assert (said.code, refused.code) == (1, 2)
    for printed in (said.err, refused.err):
        assert "\x1b" not in printed
        assert "r\\x1b[2J" in printed


@pytest.mark.parametrize(
    "arguments", [("place", "--memory", "512"), ("cancel", "r1"), ("node", "disable", "c01", "--reason", "x"), ("claims", "hold", "c1")]
)
def test_a_file_of_records_can_only_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    file = tmp_path / "all.jsonl"
    file.write_text('{"topic": "claims", "partition": 0, "offset": 0, "ts": 1, "key": "a", "payload": "b"}\n')

    code = run([*arguments, "--log", str(file)])

    assert code == 1
    assert "all.jsonl can only be read" in capsys.readouterr().err


def test_cancel_of_an_open_request_becomes_its_result(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r9", "--wait", "0s")

    said = fleet.run(capsys, "cancel", "r9")
    fleet.schedule()
    again = fleet.run(capsys, "cancel", "r9")

    assert (said.code, said.out[:23]) == (0, "r9: has no answer yet; ")
    assert fleet.run(capsys, "explain", "r9", "-o", "json").json["summary"]["reason"] == "cancelled"
    assert fleet.run(capsys, "claims", "list", "-o", "json").json["items"] == []
    assert "(cancelled); nothing to take back" in again.out


@pytest.mark.parametrize("placed_first", [False, True])
def test_cancel_says_what_came_of_it_and_not_what_stood_there_before(
    placed_first: bool, fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r9", "--wait", "0s")

    def answered_at_once(log: Log, *messages: Message) -> Position:
        if placed_first:
            fleet.schedule()
        position = appended(log, *messages)
        fleet.schedule()
        return position

    monkeypatch.setattr("streams.cli.cancel.appended", answered_at_once)
    said = fleet.run(capsys, "cancel", "r9")

    assert said.code == 0
    assert said.out.startswith("r9: placed at placement-results/" if placed_first else "r9: cancelled before it was answered\n")


def test_cancel_of_a_placed_request_gives_its_claims_back(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r9", "--wait", "0s")
    fleet.schedule()
    held = fleet.run(capsys, "claims", "list", "-o", "json").json["items"]

    said = fleet.run(capsys, "cancel", "r9", "--reason", "typo")
    fleet.schedule()

    assert len(held) == 1
    assert said.out.startswith("r9: placed at placement-results/")
    assert fleet.run(capsys, "claims", "list", "-o", "json").json["items"] == []


def test_cancel_of_an_unknown_request_is_refused_and_so_are_those_beside_it(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r9", "--wait", "0s")

    said = fleet.run(capsys, "cancel", "r9", "r404")

    assert (said.code, said.out) == (2, "")
    assert "request 'r404' is not known" in said.err
    assert fleet.run(capsys, "events", "--type", "placement-cancelled", "-o", "value").out == ""


def test_what_becomes_of_several_requests_is_awaited_for_all_together(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for request_id in ("r1", "r2", "r3"):
        fleet.run(capsys, "place", "--memory", "1GiB", "--request", request_id, "--wait", "0s")
    waits: list[int] = []

    def waiting(log: Log, request_id: str, number: int, since: int, wait_ms: int) -> None:
        assert request_id.startswith("r")
        assert log.end("placement-results", number) == since
        waits.append(wait_ms)

    monkeypatch.setattr("streams.cli.cancel.awaited", waiting)
    monkeypatch.setattr("streams.cli.cancel.ANSWER_MS", 1_000)
    monkeypatch.setattr("streams.cli.cancel.time", SimpleNamespace(monotonic=lambda: 0.6 * len(waits)))
    said = fleet.run(capsys, "cancel", "r2", "r1", "r3", "r1")

    assert [line.split(": ")[0] for line in said.out.splitlines()] == ["r2", "r1", "r3"]
    assert len(fleet.run(capsys, "events", "--type", "placement-cancelled", "-o", "value").out.splitlines()) == 3
    assert waits == [1_000, 400, 0]


def test_a_dry_run_says_where_instances_would_go_and_that_nothing_is_claimed(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    asks = fleet.path.with_name("ask.json")
    asks.write_bytes(msgspec.json.encode(PlacementRequested(request_id="r1", count=2, dry_run=True, flavor=Flavor(memory_mib=3072))))

    with scheduling(fleet):
        said = fleet.run(capsys, "place", str(asks))
        document = fleet.run(capsys, "place", str(asks), "-o", "json").json
    explained, cancelled = fleet.run(capsys, "explain", "r1"), fleet.run(capsys, "cancel", "r1")
    claims, told = fleet.run(capsys, "claims", "list", "-o", "json").json, fleet.run(capsys, "timeline", "request/r1")

    assert said.code == 0
    assert "2 x 3 GiB  dry run" in said.err
    assert "nothing is claimed" in said.err
    assert [line.split()[1] for line in said.out.splitlines()] == ["node", *(item["node_id"] for item in document["items"])]
    assert {item["node_id"] for item in document["items"]} <= {"c01", "c02"}
    assert document["summary"]["outcome"] == "dry-run"
    assert claims["items"] == []
    assert "a dry run, nothing was claimed" in explained.out
    assert "a dry run: it would be placed on c0" in told.out
    assert "nothing to take back" in cancelled.out


def test_a_move_of_what_is_not_there_has_one_account_from_all_who_are_asked(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    why = "instance nobody is neither claimed nor shown on source_node nope"
    path = fleet.path.parent / "move.json"
    flavor = Flavor(memory_mib=1024, vcpus=64)
    path.write_bytes(
        msgspec.json.encode(
            PlacementRequested(request_id="m1", action="migrate", source_node="nope", instance_ids=("nobody",), flavor=flavor)
        )
    )
    fleet.run(capsys, "place", str(path), "--wait", "0s")
    fleet.schedule()

    placed, explained = fleet.run(capsys, "place", str(path)), fleet.run(capsys, "explain", "m1")
    again = fleet.run(capsys, "what-if", "m1")

    assert f"not placed (refused): {why}" in placed.out
    assert f"refused ({why})" in explained.out
    assert "made again, it gives the same choice" in explained.out
    for said in (placed, explained, again):
        assert (said.code, "0 left\n" in said.out, "closest" in said.out) == (4, True, False)
        assert f": {why}" in said.out


def test_a_cold_migration_says_which_place_the_instance_keeps_and_how_that_ends(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.claim("r0/0/s-1.1", "i1", "c01", memory_mib=1024, request_id="r0")
    fleet.audit("c01", {"i1": 1024}, memory_mib=8192)
    move = fleet.path.with_name("move.json")
    flavor = Flavor(memory_mib=1024)
    move.write_bytes(
        msgspec.json.encode(PlacementRequested(request_id="m1", action="migrate", source_node="c01", instance_ids=("i1",), flavor=flavor))
    )

    with scheduling(fleet):
        said = fleet.run(capsys, "place", str(move))
        document = fleet.run(capsys, "place", str(move), "-o", "json").json

    (kept,) = document["summary"]["kept"]
    assert (said.code, kept["node_id"]) == (0, "c01")
    assert [item["node_id"] for item in document["items"]] == ["c02"]
    (claim,) = [each for each in fleet.run(capsys, "claims", "list", "-o", "json").json["items"] if each["keep"]]
    until = units.moment(claim["deadline_ms"])
    assert f"i1 keeps its place on c01 until {until}, and longer by `claimlog claims hold {claim['claim_id']} --ttl 24h`" in said.err
    confirm = [f"claimlog claims release {each} --reason migrated" for each in (kept["claim_id"], "r0/0/s-1.1")]
    assert f"once the move is confirmed: `{'; '.join(confirm)}`" in said.err

    for command in confirm:
        assert fleet.run(capsys, *command.split()[1:]).code == 0
    fleet.audit("c01", {}, memory_mib=8192)
    fleet.audit("c02", {"i1": 1024}, memory_mib=8192)

    assert "i1 keeps its place on c01 no longer" in fleet.run(capsys, "place", str(move)).err
    assert fleet.run(capsys, "leaks").code == 0


def test_a_migration_that_is_placed_is_told_as_placed_where_the_ledger_cannot_be_folded_for_the_place_that_is_kept(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise HistoryMissing("the records below 7 were archived")

    fleet.claim("r0/0/s-1.1", "i1", "c01", memory_mib=1024, request_id="r0")
    fleet.audit("c01", {"i1": 1024}, memory_mib=8192)
    move = fleet.path.with_name("move.json")
    asked = PlacementRequested(
        request_id="m1", action="migrate", source_node="c01", instance_ids=("i1",), flavor=Flavor(memory_mib=1024)
    )
    move.write_bytes(msgspec.json.encode(asked))
    monkeypatch.setattr("streams.cli.place.state_at", missing)

    with scheduling(fleet):
        said = fleet.run(capsys, "place", str(move))

    assert (said.code, "c02" in said.out) == (0, True)
    assert "kept: c01 for i1 with claim " in said.err
    assert "until when is not known: the records below 7 were archived" in said.err


@pytest.mark.parametrize(("asked", "code", "out"), [("1GiB", 0, "c01\t\n"), ("9GiB", 4, "\t2\n")], ids=["placed", "not placed"])
def test_a_column_of_the_other_answer_is_empty_and_changes_no_exit_code(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], asked: str, code: int, out: str
) -> None:
    with scheduling(fleet):
        said = fleet.run(capsys, "place", "--memory", asked, "-o", "value", "-c", "node", "-c", "nodes_known")

    assert (said.code, said.out) == (code, out)


def test_who_has_asked_and_cannot_read_the_answer_hears_how_to_find_it_and_how_not_to_ask_twice(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise LogUnreachable("no broker answers")

    monkeypatch.setattr(place, "awaited", away)
    said = fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r9")

    assert (said.code, said.out) == (5, "")
    assert "r9 was asked, and its answer cannot be read" in said.err
    assert "`claimlog explain r9`" in said.err
    assert "`--request r9` counts once" in said.err
    assert said.err.endswith("no broker answers\n")


def test_who_waits_for_an_answer_asks_now_and_then_whether_the_log_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    log, waits = MemoryLog(), list[float]()
    open_ledger(log, ledger_partitions=1, request_partitions=1)

    def wait(_offsets: object, timeout_seconds: float) -> bool:
        waits.append(timeout_seconds)
        if len(waits) == 3:
            raise LogUnreachable("no broker answers")
        return False

    monkeypatch.setattr(log, "wait", wait)
    with pytest.raises(LogUnreachable):
        awaited(log, "r", 0, 0, 3_600_000)

    assert max(waits) <= 5.0
