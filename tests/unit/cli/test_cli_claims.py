"""`claimlog claims`: what is held, and what a renewal or a release did, as the fold says."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.claims import ClaimItem, ClaimRequested
from schemas.resources import Resources
from schemas.topics import CLAIMS
from tests.cli_log import FleetLog


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    """Two nodes; i1 is confirmed on c01, i2 is not."""
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {})
    fleet.audit("c02", {})
    fleet.claim("r1/0/s-1.1", "i1", "c01", memory_mib=2048, vcpus=2, request_id="r1")
    fleet.claim("r2/0/s-1.2", "i2", "c02", request_id="r2", ttl_ms=1000)
    fleet.audit("c01", {"i1": 2048})
    return fleet


def test_list_shows_the_held_claims_oldest_first(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "claims", "list", "-o", "json")

    assert said.code == 0
    assert [(claim["claim_id"], claim["state"], claim["memory_mib"], claim["vcpus"]) for claim in said.json["items"]] == [
        ("r1/0/s-1.1", "confirmed", 2048, 2),
        ("r2/0/s-1.2", "overdue", 1024, 0),
    ]


@pytest.mark.parametrize(
    ("chosen", "claims"),
    [
        (["--node", "c01"], ["r1/0/s-1.1"]),
        (["--instance", "i2"], ["r2/0/s-1.2"]),
        (["--request", "r2"], ["r2/0/s-1.2"]),
        (["--state", "confirmed"], ["r1/0/s-1.1"]),
        (["--state", "unconfirmed"], ["r2/0/s-1.2"]),
        (["--state", "overdue"], ["r2/0/s-1.2"]),
    ],
)
def test_list_chooses(fleet: FleetLog, capsys: pytest.CaptureFixture[str], chosen: list[str], claims: list[str]) -> None:
    said = fleet.run(capsys, "claims", "list", *chosen, "-o", "value", "-c", "claim_id")

    assert said.out.split() == claims


def test_list_at_a_cut_knows_claims_that_were_given_back_since(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    cut = fleet.run(capsys, "claims", "list", "-o", "json").json["cut"]
    fleet.run(capsys, "claims", "release", "r1/0/s-1.1")

    assert fleet.run(capsys, "claims", "list", "-o", "value", "-c", "claim_id").out.split() == ["r2/0/s-1.2"]
    assert fleet.run(capsys, "claims", "list", "-o", "value", "-c", "claim_id", "--at", cut).out.split() == ["r1/0/s-1.1", "r2/0/s-1.2"]


def test_hold_moves_the_deadline(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "claims", "hold", "r2/0/s-1.2", "--ttl", "1h")

    assert (said.code, said.out) == (0, "held\n")
    assert "renewed at claims/" in said.err
    (claim,) = fleet.run(capsys, "claims", "list", "--request", "r2", "-o", "json").json["items"]
    assert claim["deadline_ms"] >= fleet.now_ms + 3_600_000
    assert claim["state"] == "unconfirmed"


def test_hold_of_where_a_guest_moves_to_holds_the_place_that_it_keeps_as_well(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    size = Resources(vcpus=2, memory_mib=2048)
    for number, (node_id, keep) in enumerate((("c02", False), ("c01", True))):
        item = ClaimItem(claim_id=f"m1/0/s-1.{number}", instance_id="i1", nodes=(node_id,), resources=size, keep=keep)
        basis = fleet.log.end(CLAIMS, fleet.log.partition(CLAIMS, node_id.encode())) - 1
        fleet.append(CLAIMS, ClaimRequested(request_id="m1", owner="s", basis=basis, ttl_ms=600_000, items=(item,)))

    said = fleet.run(capsys, "claims", "hold", "m1/0/s-1.0", "--ttl", "24h")
    held = fleet.run(capsys, "claims", "list", "--request", "m1", "-o", "json").json["items"]
    of_the_place = fleet.run(capsys, "claims", "hold", "m1/0/s-1.1", "--ttl", "48h")

    assert (said.code, said.out) == (0, "held\n")
    assert "m1/0/s-1.1, the place that it keeps on c01: renewed at claims/" in said.err
    assert [claim["deadline_ms"] >= fleet.now_ms + 86_400_000 for claim in held] == [True, True]
    assert len(of_the_place.err.splitlines()) == 1


def test_hold_of_a_claim_that_is_gone_says_not_held(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.run(capsys, "claims", "release", "r2/0/s-1.2")

    said = fleet.run(capsys, "claims", "hold", "r2/0/s-1.2")
    named = fleet.run(capsys, "claims", "hold", "r2/0/s-1.2", "--node", "c02")

    assert (said.code, said.out) == (1, "not held\n")
    assert "nothing was written" in said.err
    assert (named.code, named.out) == (1, "not held\n")
    assert "not-held at claims/" in named.err


def test_release_gives_a_claim_back_and_a_second_one_changes_nothing(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    first = fleet.run(capsys, "claims", "release", "r1/0/s-1.1", "--reason", "deleted", "--note", "orphan")
    second = fleet.run(capsys, "claims", "release", "r1/0/s-1.1", "--node", "c01")
    third = fleet.run(capsys, "claims", "release", "r1/0/s-1.1")

    assert (first.code, first.out) == (0, "released\n")
    assert (second.code, second.out) == (1, "not-held\n")
    assert (third.code, third.out) == (1, "not-held\n")


def test_a_cancelled_claim_in_use_stays(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "claims", "release", "r1/0/s-1.1", "--reason", "cancelled")

    assert (said.code, said.out) == (1, "in-use\n")
    assert "its guest must be deleted first" in said.err
    assert "r1/0/s-1.1" in fleet.run(capsys, "claims", "list").out


def test_the_wrong_node_is_a_mistake_in_use(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "claims", "release", "r1/0/s-1.1", "--node", "c02")

    assert said.code == 2
    assert "is held on c01, not on c02" in said.err


@pytest.mark.parametrize("ttl", ["10", "ten", "-5m", "1.5h"])
def test_a_length_of_time_needs_its_unit(fleet: FleetLog, capsys: pytest.CaptureFixture[str], ttl: str) -> None:
    said = [fleet.run(capsys, "claims", "hold", "r1/0/s-1.1", *flag) for flag in ([f"--ttl={ttl}"], ["--ttl", ttl])]

    assert [(each.code, f"{ttl!r} is no length of time" in each.err) for each in said] == [(2, True)] * 2


def test_claims_are_known_from_a_snapshot_when_their_history_has_left_the_log(
    fleet: FleetLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = fleet.run(capsys, "claims", "list", "-o", "json").json
    assert fleet.run(capsys, "archive", str(tmp_path / "history"), "--below", "now").code == 0

    after = fleet.run(capsys, "claims", "list", "-o", "json").json

    ages = [claim.pop("age_ms") for answer in (before, after) for claim in answer["items"]]
    assert len(ages) == 4
    assert after == before
    assert fleet.run(capsys, "claims", "release", "r1/0/s-1.1").out == "released\n"


@pytest.mark.parametrize("verb", ["hold", "release"])
def test_a_word_about_a_claim_on_its_way_to_a_node_that_nobody_knows_is_not_written(
    verb: str, fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fleet.run(capsys, "claims", verb, "r9/0/s-1.9", "--node", "c0l")

    assert said.code == 2
    assert "node 'c0l' is not known" in said.err
