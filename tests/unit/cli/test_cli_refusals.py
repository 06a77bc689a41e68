"""What is refused rather than passed over in silence: names that nobody knows, flags without effect, empty variables of a script."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from tests.cli_log import FleetLog

DEEP = "[" * 100_000
REQUEST = '{"flavor": {"vcpus": 1}}'


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {})
    fleet.claim("r1/0/s-1.1", "i1", "c01")
    return fleet


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("claims", "hold", "r1/0/s-1.1", "--ttl", "0s"), "--ttl 0s: that holds it for no time"),
        (("claims", "list", "--node", "c09"), "node 'c09' is not known; known: c01"),
        (("events", "--type", "claim-asked"), "--type 'claim-asked': there is no such type; there are: audit-failed, "),
        (("events", "--type", "claim-*", "--type", ""), "--type '': there is no such type"),
        (("events", "--topic", "cliams"), "there is no topic 'cliams'; there are: hypervisor-audits, "),
        (("dead-letters", "list", "--topic", "cliams"), "--topic 'cliams': there is no such topic; there are: answered-requests, "),
        (("dead-letters", "list", "--topic", ""), "--topic '': there is no such topic"),
        (("dead-letters", "list", "--kind", "unreadible"), "--kind 'unreadible': there is no such kind; there are: cut-short, damaged, "),
        (("dead-letters", "redrive", "--all", "--topic", "cliams"), "--topic 'cliams': there is no such topic"),
        (("dead-letters", "redrive", "--all", "--topic", ""), "--topic '': there is no such topic"),
        (("dead-letters", "redrive", "dead-letters/0@0", "--topic", "claims"), "--topic claims: it goes with --all"),
        (("claims", "list", "--node", ""), "--node '': expected a name"),
        (("claims", "list", "--request", ""), "--request '': expected a name"),
        (("capacity", "--vcpus", "1", "--avoid", "c09"), "node 'c09' is not known; known: c01"),
        (("what-if", "--vcpus", "1", "--on", "c01", "--on", "c09"), "node 'c09' is not known; known: c01"),
        (("what-if", "--vcpus", "1", "--force", "c09"), "node 'c09' is not known; known: c01"),
        (("capacity", "--vcpus", "0"), "nothing is asked for: every size is 0; give --vcpus"),
        (("capacity", "--memory", "0", "--flavor", "m1"), "nothing is asked for: every size is 0"),
        (("capacity", "--disk", ""), "--disk '': write an amount"),
        (("what-if", "--pcpus", "0"), "nothing is asked for: every size is 0"),
        (("place", "--vcpus", "1", "--ttl", ""), "'' is no length of time"),
        (("what-if", "--vcpus", "1", "--ttl", "5m"), "--ttl: nothing is claimed here"),
        (("replay", "--verify", "--no-from-snapshots"), "--verify folds from the first record, and once more from a snapshot"),
        (("place", "--memory", "0GiB", "--vcpus", "0"), "nothing is asked for: every size is 0"),
        (("place", "--vcpus", "1", "--memory", ""), "--memory '': write an amount"),
        (("place", "--vcpus", "1", "--zone", ""), "for --zone: expected a value, and it is empty"),
        (("what-if", "--vcpus", "1", "--group", ""), "for --group: expected a value, and it is empty"),
        (("what-if", "--vcpus", "1", "--ratio", "vcpus=1", "--ratio", "vcpus=2"), "a resource has one ratio; name each once"),
        (("node", "retire", "--unheard-for", "0s"), "--unheard-for 0s: every node is unheard of for no time"),
        (("events", "--for", ""), "for --for: expected a value, and it is empty"),
        (("leaks", "--heal", "--report-age", ""), "for --report-age: expected a value, and it is empty"),
        (("claims", "hold", "r1/0/s-1.1", "--node", ""), "for --node: expected a value, and it is empty"),
        (("explain", "r1", "--node", ""), "for --node: expected a value, and it is empty"),
        (("run", "--state", "", "--until-idle"), "for --state: expected a value, and it is empty"),
        (("doctor", "--state", ""), "for --state: expected a value, and it is empty"),
        (("what-if", "--vcpus", "1", "--at", ""), "'' is no time; write one of"),
        (("what-if", "--vcpus", "1", "--add", f"c01={'9' * 5000}"), "expected NODE or NODE=COUNT"),
        (("snapshot", "write", "--partition", "0.6"), "'0.6' is no whole number"),
        (("events", "-w", "-c", "bogus"), "there is no column 'bogus'; there are: time_ms, position"),
        (("place", "--memory", f"1.{'0' * 40}1"), "only whole MiB are counted"),
        (("demo", "--seed", "1.5"), "'1.5' is no whole number"),
        (("demo", "--nodes", "4.5"), "'4.5' is no whole number"),
        (("produce", "load", "--once", "--limit", "5"), "--once asks for nothing: leave --limit, --speed and --batch out"),
        (("produce", "load", "--once", "--batch", "5"), "--once asks for nothing: leave --limit, --speed and --batch out"),
        (("produce", "trace", "--once", "--speed", "5"), "--once asks for nothing: leave --limit and --speed out"),
        (("produce", "load", "--once", "--interval", "5"), "--interval 5: --once takes one audit of each host; leave it out"),
        (("produce", "load", "--nodes", "0", "--interval", "5"), "--interval 5: --nodes 0 simulates no host; leave it out"),
        (("produce", "load", "--history", "9", "--nodes", "10000000000"), "--nodes 10000000000: expected 0 to 1000000"),
        (("produce", "openstack", "--from", "-", "--interval", "5"), "--interval 5: it says how often --hypervisors FILE is told"),
        (("doctor", "--state", "/no/such/folder"), "--state /no/such/folder: there is no such folder"),
        (("run", "--name", "rack1/s", "--until-idle"), "expected a name without `/`"),
        (("snapshot", "list", "-c", "bogus"), "there is no column 'bogus'"),
        (("snapshot", "list", "--sort", "bogus"), "there is no column 'bogus'"),
        (("archive", "", "--below", "now"), "DIRECTORY '': expected the folder"),
        (("copy", ""), "TARGET '': expected sqlite:PATH"),
        (("rules", "set", "0"), "rules set 0: versions of rules begin with 1"),
        (("run", "--name", ""), "expected a name; leave it out"),
        (("topics", "apply", "--ledger-partitions", "8"), "--ledger-partitions 8: claims has 2 here, and that never changes"),
        (("topics", "apply", "--request-partitions", "8"), "--request-partitions 8: placement-requests has 2 here"),
    ],
)
def test_what_would_be_passed_over_in_silence_exits_2(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    said = fleet.run(capsys, *arguments)

    assert (said.code, said.out) == (2, "")
    assert says in said.err


@pytest.mark.parametrize(
    ("arguments", "text", "says"),
    [
        (("place", "-", "--vcpus", "3"), REQUEST, "--vcpus: the request is given already; no flag of an instance goes with it"),
        (("place", "-", "--vcpus", "0"), REQUEST, "--vcpus: the request is given already; no flag of an instance goes with it"),
        (("what-if", "-", "--memory", "0"), REQUEST, "--memory: the request is given already"),
        (("capacity", "-", "--disk", "0"), REQUEST, "give a file of flavors or the sizes of one as flags, not both"),
        (("place", "-"), DEEP, "stdin: nested too deep"),
        (("what-if", "-"), DEEP, "stdin: nested too deep"),
        (("what-if", "-", "--zone", "z"), REQUEST, "--zone: the request is given already; of the flags of an instance only --count"),
        (("capacity", "-"), '{"flavor": ' * 100_000, "stdin: nested too deep"),
        (("capacity", "-"), '[{"Name": ' + DEEP, "stdin: nested too deep"),
        (("capacity", "-"), f"flavors = {DEEP}", "stdin: nested too deep"),
        (("capacity", "-", "--zone", "z"), REQUEST, "--zone: the request is given already"),
    ],
)
def test_a_request_on_stdin_that_says_too_much_or_nests_too_deep_exits_2(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], text: str, says: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))

    said = fleet.run(capsys, *arguments)

    assert (said.code, said.out) == (2, "")
    assert says in said.err


def test_files_that_nest_too_deep_exit_2(fleet: FleetLog, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "deep.toml"
    file.write_text(f"defaults = {DEEP}")
    verbs = (("fleet", "apply", str(file)), ("what-if", "--vcpus", "1", "--by", str(file)), ("capacity", str(file)))

    said = [fleet.run(capsys, *arguments) for arguments in verbs]

    assert [each.code for each in said] == [2, 2, 2]
    assert ["nested too deep" in each.err for each in said] == [True, True, True]


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("fleet.toml", "[defaults]\nzone = 'east'\n", ("fleet", "apply")),
        ("policy.toml", "filters = ['RamFilter']\n", ("what-if", "--vcpus", "1", "--by")),
        ("flavors.toml", "[flavors.small]\nvcpus = 1\n", ("capacity",)),
        ("flavors.json", '[{"Name": "small", "VCPUs": 1, "Properties": {}}]', ("capacity",)),
        ("request.json", REQUEST, ("what-if",)),
    ],
)
def test_a_mark_before_utf_8_is_passed_over(
    name: str, text: str, arguments: tuple[str, ...], fleet: FleetLog, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8-sig")

    said = fleet.run(capsys, *arguments, str(file))

    assert said.code == 0, said.err


@pytest.mark.parametrize("arguments", [("place",), ("what-if",), ("capacity",), ("fleet", "apply"), ("what-if", "--vcpus", "1", "--by")])
def test_a_file_that_is_not_utf_8_exits_2(
    arguments: tuple[str, ...], fleet: FleetLog, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "latin-1.json"
    file.write_bytes('{"flavor": {"name": "kößlin", "vcpus": 1}}'.encode("latin-1"))

    said = fleet.run(capsys, *arguments, str(file))

    assert (said.code, said.out) == (2, "")
    assert "latin-1.json" in said.err
    assert "'utf-8' codec can't decode byte 0xf6 in position 22" in said.err


def test_what_no_reader_would_take_is_not_written(fleet: FleetLog, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    request, settings = tmp_path / "request.json", tmp_path / "fleet.toml"
    request.write_text(json.dumps({"flavor": {"vcpus": 1, "extra_specs": {f"k{n}": "x" * 200 for n in range(2000)}}}))
    settings.write_text("[aggregates.a]\nnodes = ['c01']\nmetadata = {" + ", ".join(f'k{n} = "{"x" * 200}"' for n in range(2000)) + "}")
    verbs = [("place", str(request)), ("fleet", "apply", str(settings)), ("node", "disable", "c01", "--reason", "x" * 300_000)]
    ends = {topic: fleet.log.ends(topic) for topic in fleet.log.topics()}

    said = [fleet.run(capsys, *arguments) for arguments in verbs]

    assert {topic: fleet.log.ends(topic) for topic in fleet.log.topics()} == ends
    assert [(each.code, each.out) for each in said] == [(2, "")] * 3
    assert ["nobody could read it" in each.err for each in said] == [True] * 3


def test_a_topic_that_is_named_twice_is_read_once(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    once = fleet.run(capsys, "events", "--topic", "claims", "-o", "value").out

    assert fleet.run(capsys, "events", "--topic", "claims", "--topic", "claims", "-o", "value").out == once


def test_nothing_held_and_nothing_known_are_told_apart(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.run(capsys, "claims", "release", "r1/0/s-1.1")

    listed = [fleet.run(capsys, "claims", "list", *flag) for flag in (("--node", "c01"), ("--instance", "i1"), ("--request", "r9"))]
    before = fleet.run(capsys, "leaks", "--at", "1999-01-01")

    assert [said.code for said in listed] == [0, 0, 0]
    assert "nothing is held for instance/i1; `claimlog timeline instance/i1` says whether it is known" in listed[1].err
    assert "nothing is held for request/r9" in listed[2].err
    assert (before.code, before.err.splitlines()[-1]) == (0, "nothing found: no node is known, so there is nothing to compare")


def test_a_size_of_0_beside_another_is_an_amount_like_any(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "capacity", "--vcpus", "0", "--memory", "1GiB", "--disk", "0", "-o", "json")

    assert said.code == 0
    assert [(item["vcpus"], item["memory_mib"], item["disk_mib"], item["fits"]) for item in said.json["items"]] == [(0, 1024, 0, 7)]


def test_a_node_that_is_added_only_here_may_be_named(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("--vcpus", "1", "--add", "c01", "--on", "c01+1")

    assert [fleet.run(capsys, verb, *asked).code for verb in ("capacity", "what-if")] == [0, 0]
