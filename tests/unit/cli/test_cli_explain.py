"""`claimlog explain`: the recorded evidence, made again at its own cut, and joined with the leaks that stand in the way."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import json, structs

from schemas.codec import decode, encode
from schemas.ids import instance_id
from schemas.inventory import NumaCell, PciDevice
from schemas.requests import Flavor, NumaWant, PciWant, PlacementCancelled, PlacementRequested
from schemas.resources import Limits
from schemas.results import InstancesPlaced, SchedulerStarted
from schemas.topics import CLAIMS, REQUESTS, RESULTS
from streams.cli.reading.relief import Relief
from streams.log.base import Message
from streams.scheduler import GROUP
from streams.scheduling.options import Options
from streams.scheduling.policy import DEFAULT, Multiplied, Policy, digest_of
from streams.scheduling.policy import text as text_of
from tests.cli_log import PARTITIONS, FleetLog, code_of_its_own


@pytest.fixture
def fleet(fleet: FleetLog) -> FleetLog:
    """c03 beside them has 16 GiB."""
    fleet.audit("c03", {}, memory_mib=16_384)
    return fleet


def leak_on_c03(fleet: FleetLog) -> None:
    """Of 16 GiB there 7 are held for a guest that has gone without a word."""
    fleet.claim("r0/0/s-1.1", "i1", "c03", memory_mib=7168, request_id="r0")
    fleet.audit("c03", {"i1": 7168}, memory_mib=16_384)
    fleet.now_ms += 60_000
    fleet.audit("c03", {}, memory_mib=16_384)


def test_a_placement_names_its_cut_its_funnel_and_gives_the_same_choice_again(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.asked(capsys, "r1", "--memory", "6GiB", "--count", "2")
    fleet.audit("c01", {"late": 4096}, memory_mib=8192)

    said = fleet.run(capsys, "explain", "r1")

    assert said.code == 0
    assert said.out.count("made again, it gives the same choice") == 2
    assert " and 1 own claim in flight; made again" in said.out
    assert "3 = 1 rejected + 2 left" in said.out
    assert "chosen: c0" in said.out
    assert "granted on c0" in said.out
    assert said.err.startswith("cut:")


def test_filters_are_others_only_beside_one_that_rejected_somebody(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.asked(capsys, "r1", "--memory", "1GiB")
    fleet.asked(capsys, "r2", "--memory", "6GiB")

    none, some = fleet.run(capsys, "explain", "r1").out, fleet.run(capsys, "explain", "r2").out

    assert re.search(r"3 nodes known\n  \d filters rejected nobody\n3 = 0 rejected", none)
    assert re.search(r"  \d other filters rejected nobody\n3 = 1 rejected", some)


def test_the_only_node_left_is_not_weighed_and_the_answer_says_so(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.asked(capsys, "r1", "--memory", "12GiB")

    said = fleet.run(capsys, "explain", "r1")

    assert "chosen: c03\n  c03  not weighed\n" in said.out


def test_what_a_weigher_made_of_a_large_node_is_shown_to_the_last_digit(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.audit("c04", {}, memory_mib=1_048_577)
    fleet.asked(capsys, "r1", "--memory", "1GiB")

    assert "  c04  " in (told := fleet.run(capsys, "explain", "r1").out)
    assert "RAMWeigher 1048577 (" in told


def of_an_older_version(fleet: FleetLog, directory: Path) -> FleetLog:
    """The same log, but its schedulers wrote their policies' texts without a field that came later."""
    older = FleetLog(directory)
    for topic in (CLAIMS, REQUESTS, RESULTS):
        for number in range(PARTITIONS):
            for record in fleet.log.read(topic, number, older.log.end(topic, number), 1000):
                event = decode(topic, record.value)
                if isinstance(event, SchedulerStarted):
                    text = older_text(event.policy)
                    event = structs.replace(event, policy=text, policy_digest=digest_of(text))
                if isinstance(event, InstancesPlaced):
                    named = [structs.replace(each, policy_digest=digest_of(older_text(text_of(DEFAULT)))) for each in event.decisions]
                    event = structs.replace(event, decisions=tuple(named))
                older.now_ms = record.time_ms
                older.log.append([Message(topic, record.key, encode(event))])
    return older


def older_text(text: str) -> str:
    fields = json.decode(text)
    del fields["alternates_max"]
    return json.encode(fields).decode()


def test_a_decision_by_a_policy_that_was_written_with_fewer_fields_is_made_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
    new = FleetLog(tmp_path / "new")
    new.audit("c01", {}, memory_mib=8192)
    new.asked(capsys, "r1", "--memory", "6GiB")
    fleet = of_an_older_version(new, tmp_path / "old")

    explained, played = fleet.run(capsys, "explain", "r1"), fleet.run(capsys, "what-if", "r1")

    assert explained.out.count("made again, it gives the same choice") == 1
    assert (explained.code, played.code) == (0, 0)


def test_a_refusal_exits_4_and_names_the_leak_that_would_make_room(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    leak_on_c03(fleet)
    fleet.asked(capsys, "r1", "--memory", "12GiB")

    said = fleet.run(capsys, "explain", "r1")

    assert said.code == 4
    assert "no-valid-node" in said.out
    assert "closest: c03, if 3 GiB memory more were free (12 GiB needed of 9 GiB)" in said.out
    room = "1 leak on c03 holds 7 GiB; without it the request would fit there -> claimlog leaks --node c03 --explain"
    assert room in said.out
    cut = fleet.run(capsys, "leaks", "-o", "json").json["cut"]
    assert fleet.run(capsys, "claims", "release", "r0/0/s-1.1", "--reason", "deleted").code == 0
    assert room not in fleet.run(capsys, "explain", "r1").out
    assert room in fleet.run(capsys, "explain", "r1", "--at", cut).out


def test_where_more_than_amounts_is_in_the_way_the_node_that_fewest_filters_reject_is_named(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "r2.json").write_text('{"flavor": {"vcpus": 4, "extra_specs": {"hw:cpu_policy": "gold"}}}')
    assert fleet.run(capsys, "node", "disable", "c03", "--reason", "fan").code == 0
    fleet.asked(capsys, "r1", "--memory", "2GiB", "--trait", "CUSTOM_GOLD")
    fleet.asked(capsys, "r2", str(tmp_path / "r2.json"))

    said, played = fleet.run(capsys, "explain", "r1"), fleet.run(capsys, "what-if", "r1")
    (item,) = fleet.run(capsys, "explain", "r1", "-o", "json").json["items"]
    contradiction = fleet.run(capsys, "explain", "r2")

    closest = "closest: c01, but for TraitsFilter (lacks CUSTOM_GOLD)\n"
    assert closest in said.out
    assert closest in played.out
    assert item["nearest_miss"] is None
    assert item["closest"] == {"node_id": "c01", "rejected": [{"filter": "TraitsFilter", "reason": "lacks CUSTOM_GOLD", "shortfalls": []}]}
    assert "closest" not in contradiction.out


def test_the_cut_of_an_answer_gives_the_same_answer_again(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.asked(capsys, "placed", "--memory", "1GiB")
    fleet.audit("c02", {})

    first = fleet.run(capsys, "explain", "placed", "-o", "json")
    again = fleet.run(capsys, "explain", "placed", "-o", "json", "--at", first.json["cut"])

    assert first.json["items"][0]["outcomes"]
    assert again.out == first.out
    assert first.json["summary"]["decided_on"] != first.json["cut"]


@pytest.mark.parametrize("by", ["cut", "time"])
def test_what_came_after_the_moment_is_no_part_of_the_answer(by: str, fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.append(REQUESTS, PlacementRequested(request_id="r1", flavor=Flavor(vcpus=1, memory_mib=64)))
    fleet.schedule()
    fleet.append(REQUESTS, PlacementCancelled(request_id="r1", record_id="first"))
    said = fleet.run(capsys, "explain", "r1", "-o", "json").json
    moment = said["cut"] if by == "cut" else str(fleet.now_ms + 1)
    fleet.now_ms += 60_000
    fleet.append(REQUESTS, PlacementCancelled(request_id="r1", record_id="second"))
    fleet.append(REQUESTS, PlacementRequested(request_id="r1", flavor=Flavor(vcpus=1, memory_mib=64)))
    (failed,) = [each for number in range(PARTITIONS) for each in fleet.log.read(RESULTS, number, 0) if each.key == b"r1"]
    fleet.log.append([Message(RESULTS, b"r1", failed.value, (), failed.partition)])

    again = fleet.run(capsys, "explain", "r1", "--at", moment, "-o", "json").json
    told = fleet.run(capsys, "explain", "r1", "--at", moment).out
    now = fleet.run(capsys, "explain", "r1")

    assert (again["summary"], again["items"]) == (said["summary"], said["items"])
    assert len(again["summary"]["cancels"]) == 1
    assert [told.count(f"\n{word} ") for word in ("again", "cancel", "also")] == [0, 1, 0]
    assert [now.out.count(f"\n{word} ") for word in ("again", "cancel", "also")] == [1, 2, 1]


def test_what_else_was_asked_under_the_same_id_is_named_and_counts_for_nothing(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    asked = PlacementRequested(request_id="r1", flavor=Flavor(vcpus=1, memory_mib=64))
    fleet.append(REQUESTS, asked)
    fleet.schedule()
    fleet.append(REQUESTS, asked)
    fleet.append(REQUESTS, structs.replace(asked, flavor=Flavor(vcpus=2, memory_mib=64)))

    told, said = fleet.run(capsys, "explain", "r1"), fleet.run(capsys, "explain", "r1", "-o", "json").json

    first, second = said["summary"]["again"]
    assert (first["other"], second["other"]) == (False, True)
    assert f"\nagain    {first['position']}  the same\n" in told.out
    assert f"\nagain    {second['position']}  for something else, which counts for nothing\n" in told.out


def test_at_a_moment_before_the_answer_there_is_none_to_tell_of(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    cut, before_ms = fleet.run(capsys, "leaks", "-o", "json").json["cut"], fleet.now_ms
    fleet.now_ms += 60_000
    fleet.audit("c04")
    fleet.asked(capsys, "r1", "--memory", "1GiB")
    after_ms = fleet.now_ms

    early = [fleet.run(capsys, "explain", "r1", "--at", moment) for moment in (cut, str(before_ms), str(after_ms))]
    late = fleet.run(capsys, "explain", "r1", "--at", str(after_ms + 1))

    assert [(said.code, said.out) for said in early] == [(6, "")] * 3
    assert "request r1 had no answer yet then: it was answered at" in early[0].err
    assert all("request r1 was not asked for yet then, but at " in said.err for said in early[1:])
    assert late.code == 0


def test_leaks_that_would_not_make_room_enough_are_told_without_that_promise() -> None:
    relief = Relief("c01", 2, (0, 0, 1024, 0), fits=False)

    assert relief.told == "2 leaks on c01 hold 1 GiB -> claimlog leaks --node c01 --explain"
    assert structs.replace(relief, fits=True).told.startswith("2 leaks on c01 hold 1 GiB; without them the request would fit there -> ")


def test_of_several_instances_a_leak_is_said_to_make_room_for_one(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    leak_on_c03(fleet)
    fleet.asked(capsys, "apart", "--memory", "12GiB", "--count", "2", "--group", "g")
    fleet.asked(capsys, "together", "--memory", "6GiB", "--count", "2", "--group", "h", "--policy", "affinity")
    fleet.asked(capsys, "of CPUs", "--vcpus", "10", "--memory", "1GiB", "--count", "4")

    apart, together, of_cpus = (fleet.run(capsys, "explain", request).out for request in ("apart", "together", "of CPUs"))

    assert "1 leak on c03 holds 7 GiB; without it one more of its instances would fit there" in apart
    assert "1 leak on c03 holds 7 GiB; without it the request would fit there" in together
    assert "no node for instance 3 of 4: of 3 nodes rejected by CoreFilter 3" in of_cpus
    assert "would fit there" not in of_cpus
    said = [fleet.run(capsys, "explain", request, "-o", "json").json["items"][-1]["leaks"] for request in ("apart", "together")]
    assert [[(leak["fits_without"], leak["one_of_many"]) for leak in leaks] for leaks in said] == [[(True, True)], [(True, False)]]


def test_of_an_affinity_group_the_choice_of_its_home_is_told_before_its_members(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.asked(capsys, "first", "--memory", "3GiB", "--count", "2", "--group", "h", "--policy", "affinity")
    fleet.asked(capsys, "later", "--memory", "1GiB", "--group", "h", "--policy", "affinity")

    first, later = (fleet.run(capsys, "explain", request).out for request in ("first", "later"))
    member = fleet.run(capsys, "explain", instance_id("first", 1), "-o", "json").json

    assert first.count("made again, it gives the same choice") == 3
    choice, one, two = (part for part in first.split("\n\n")[1:])
    assert choice.startswith("home of group h, chosen before its first member\n")
    assert ("3 = 1 rejected + 2 left" in choice, "granted on" in choice) == (True, False)
    assert ["3 = 2 rejected + 1 left" in each and "granted on c03" in each for each in (one, two)] == [True, True]
    assert "home of group" not in later
    assert [(item["instance_id"], len(item["outcomes"])) for item in member["items"]] == [(instance_id("first", 1), 1)]
    assert (member["summary"]["home"]["chosen"], member["summary"]["home"]["rerun"]["same"]) == ("c03", True)
    assert fleet.run(capsys, "explain", "later", "-o", "json").json["summary"]["home"] is None
    assert fleet.run(capsys, "what-if", "first").code == 0


def test_a_leak_elsewhere_that_would_make_room_is_named_too_but_not_where_something_else_forbids(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    for node_id, claim_id in (("c01", "r0/0/s-1.1"), ("c03", "r0/1/s-1.2")):
        fleet.claim(claim_id, f"i-{node_id}", node_id, memory_mib=8192, request_id="r0")
        fleet.audit(node_id, {f"i-{node_id}": 8192}, memory_mib=8192 if node_id == "c01" else 9216)
    fleet.claim("r9/0/s-1.9", "i-c02", "c02", memory_mib=2048, request_id="r9")
    fleet.audit("c02", {"i-c02": 2048}, memory_mib=6144)
    fleet.now_ms += 60_000
    fleet.audit("c01", {}, memory_mib=8192)
    fleet.audit("c03", {}, memory_mib=9216)
    fleet.asked(capsys, "r1", "--memory", "5GiB", "--avoid", "c03")

    (item,) = fleet.run(capsys, "explain", "r1", "-o", "json").json["items"]

    assert item["nearest_miss"]["node_id"] == "c02"
    assert [(leak["node_id"], leak["held"]["memory_mib"], leak["fits_without"]) for leak in item["leaks"]] == [("c01", 8192, True)]


@pytest.mark.parametrize("option", ["", "AggregateRamFilter", "NumInstancesFilter", "AggregateNumInstancesFilter"])
@pytest.mark.parametrize(("asked_mib", "fits"), [(5000, True), (9000, False)])
def test_a_leak_makes_room_whatever_filters_count_amounts_and_instances(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, asked_mib: int, fits: bool
) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"ghost": 6144})
    filters = (*DEFAULT.filters, option) if option else DEFAULT.filters
    policy = structs.replace(DEFAULT, filters=filters, options=structs.replace(DEFAULT.options, max_instances_per_host=1))
    fleet.asked(capsys, "r1", "--memory", str(asked_mib), policy=policy)

    (item,) = fleet.run(capsys, "explain", "r1", "-o", "json").json["items"]

    assert [leak["node_id"] for leak in item["leaks"] if leak["fits_without"]] == (["c01"] if fits else [])


def test_of_a_full_node_nothing_is_free_which_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"vm": 8192})
    fleet.asked(capsys, "r1", "--memory", "1GiB")

    (item,) = fleet.run(capsys, "explain", "r1", "-o", "json").json["items"]

    lack = {"resource": "memory_mib", "needed": 1024, "free": 0, "detail": ""}
    assert item["nearest_miss"]["shortfalls"] == [lack]
    assert item["matrix"]["nodes"][0]["rejected"][0]["shortfalls"] == [lack]


def leak_told(fleet: FleetLog, capsys: pytest.CaptureFixture[str], *asked: str) -> list[tuple[int, bool]]:
    """Of each leak that `explain` tells of a request what it holds, and whether the request would fit without it."""
    fleet.run(capsys, "place", *asked, "--wait", "0s")
    fleet.schedule()
    (item,) = fleet.run(capsys, "explain", "asked", "-o", "json").json["items"]
    assert item["nearest_miss"] is not None
    return [(leak["held"]["memory_mib"], leak["fits_without"]) for leak in item["leaks"]]


@pytest.mark.parametrize(("memory_mib", "fits"), [(7168, True), (8192, False)])
def test_what_an_instance_uses_where_it_is_resized_is_free_for_it_beside_what_a_leak_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], memory_mib: int, fits: bool
) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"vm": 4096, "ghost": 1024, "ours": 512})
    fleet.claim("vm/0/s-1.1", "vm", "c01", memory_mib=4096)
    fleet.claim("ours/0/s-1.1", "ours", "c01", memory_mib=512)
    fleet.audit("c01", {"vm": 4096, "ghost": 1024, "ours": 512})
    resize = {"request_id": "asked", "action": "resize", "source_node": "c01", "instance_ids": ["vm"], "flavor": {"memory_mib": memory_mib}}
    (tmp_path / "up.json").write_bytes(json.encode(resize))

    assert leak_told(fleet, capsys, str(tmp_path / "up.json")) == [(1024, fits)]


@pytest.mark.parametrize(("near", "told"), [((), [(4096, True)]), (("--hint", "same_host=ghost"), [])])
def test_a_leak_that_the_request_has_to_be_near_is_not_in_its_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], near: tuple[str, ...], told: list[tuple[int, bool]]
) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {"ghost": 4096})

    assert leak_told(fleet, capsys, "--memory", "6GiB", "--request", "asked", *near) == told


def test_no_leak_is_blamed_where_another_filter_of_its_policy_stands_in_the_way(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    leak_on_c03(fleet)
    assert fleet.run(capsys, "place", "--memory", "12GiB", "--request", "r1", "--wait", "0s").code == 0
    alone = Options(isolated_hosts=("c03",), isolated_images=("apart",))
    fleet.schedule(policy=Policy(filters=("IsolatedHostsFilter", "RamFilter"), options=alone))

    said = fleet.run(capsys, "explain", "r1")

    assert said.code == 4
    assert "would fit there" not in said.out


def test_no_leak_is_blamed_where_amounts_are_not_what_stands_in_the_way(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.claim("r0/0/s-1.1", "i1", "c03", memory_mib=1024, request_id="r0")
    fleet.audit("c03", {"i1": 1024}, memory_mib=16_384)
    fleet.now_ms += 60_000
    fleet.audit("c03", {}, memory_mib=16_384)
    fleet.claim("r2/0/s-1.2", "i2", "c03", memory_mib=1024, request_id="r2")
    resize = fleet.path.with_name("resize.json")
    resize.write_bytes(
        json.encode(
            PlacementRequested(request_id="r3", action="resize", instance_ids=("i2",), source_node="c03", flavor=Flavor(memory_mib=2048))
        )
    )

    assert fleet.run(capsys, "place", str(resize), "--wait", "0s").code == 0
    fleet.schedule()
    said = fleet.run(capsys, "explain", "r3")

    assert said.code == 4
    assert "another request's claim of this instance is not confirmed yet" in said.out
    assert "would fit there" not in said.out
    assert "memory: 2 GiB needed; of 1 ready node 1 have it free; free 15 GiB of 16 GiB in all, at most 15 GiB on one (c03)" in said.out


def test_no_leak_is_blamed_where_an_instance_to_be_moved_is_not_there(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    leak_on_c03(fleet)
    move = fleet.path.with_name("move.json")
    flavor = Flavor(memory_mib=12 * 1024)
    move.write_bytes(
        json.encode(PlacementRequested(request_id="r3", action="migrate", instance_ids=("nobody",), source_node="c01", flavor=flavor))
    )

    assert fleet.run(capsys, "place", str(move), "--wait", "0s").code == 0
    fleet.schedule()
    placed, said = fleet.run(capsys, "place", str(move)), fleet.run(capsys, "explain", "r3")

    assert (placed.code, said.code) == (4, 4)
    assert "leak" not in placed.out + said.out
    assert "memory: 12 GiB needed; no ready node takes part\n" in said.out


def test_a_request_that_is_invalid_is_no_question_of_room(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    """255 characters make a request, and with more behind them no name of a claim."""
    name = "y" * 255
    fleet.asked(capsys, name, "--memory", "1GiB")

    placed, said = fleet.run(capsys, "place", "--memory", "1GiB", "--request", name), fleet.run(capsys, "explain", name, "-o", "json")

    assert said.json["summary"]["reason"] == "invalid"
    assert (placed.code, said.code) == (1, 1)


def test_no_leak_is_blamed_where_a_limit_of_the_request_itself_stands_in_the_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {}, memory_mib=16_384)
    for name, size in (("i1", 1024), ("i2", 6144)):
        fleet.claim(f"{name}/0/s-1.1", name, "c01", memory_mib=size, request_id=name)
    fleet.audit("c01", {"i1": 1024, "i2": 6144}, memory_mib=16_384)
    fleet.now_ms += 60_000
    fleet.audit("c01", {"i2": 6144}, memory_mib=16_384)
    for memory_mib in (4096, 7168):
        limits = Limits(memory_mib=memory_mib)
        fleet.append(REQUESTS, PlacementRequested(request_id=f"below {memory_mib}", flavor=Flavor(memory_mib=1024), limits=limits))
    fleet.schedule()

    leaks = {
        limit: fleet.run(capsys, "explain", f"below {limit}", "-o", "json").json["items"][0]["leaks"][0]["fits_without"]
        for limit in (4096, 7168)
    }

    assert leaks == {4096: False, 7168: True}


def test_a_node_that_is_smaller_than_the_instance_is_not_said_to_want_less_than_that(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its ratio 1,500 MiB are free on c01; with 100 more it would still be a node of 1,000 MiB, on which no filter lets 1,600."""
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {}, memory_mib=1000)
    fleet.claim("r0/0/s-1.1", "i1", "c01", memory_mib=500, request_id="r0")
    settings = tmp_path / "fleet.toml"
    settings.write_text("[nodes.c01]\nmemory_mib = { ratio = 2 }\n")
    assert fleet.run(capsys, "fleet", "apply", str(settings)).code == 0
    fleet.asked(capsys, "r1", "--memory", "1600")

    said, item = fleet.run(capsys, "explain", "r1").out, fleet.run(capsys, "explain", "r1", "-o", "json").json["items"][0]
    played = fleet.run(capsys, "what-if", "r1").out

    for told in (said, played):
        assert "c01: memory_mib: 1600 needed, the whole node has 1000" in told
        assert "closest: c01, if not for memory_mib: 1600 needed, the whole node has 1000" in told
    ((lack,),) = [each["shortfalls"] for each in item["matrix"]["nodes"][0]["rejected"] if each["filter"] == "RamFilter"]
    assert (lack["needed"], lack["free"]) == (1600, 1000)


def test_the_closest_node_is_not_said_to_be_too_small_under_a_policy_that_does_not_ask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01", {}, memory_mib=1000, vcpus=4)
    settings = tmp_path / "fleet.toml"
    settings.write_text("[nodes.c01]\nmemory_mib = { ratio = 2 }\n")
    assert fleet.run(capsys, "fleet", "apply", str(settings)).code == 0
    fleet.asked(capsys, "r1", "--memory", "1600", "--vcpus", "5", policy=Policy(filters=("ComputeFilter",)))

    said = fleet.run(capsys, "explain", "r1").out

    assert "closest: c01, if 1 vcpus more were free (5 needed of 4)\n" in said


def test_an_instance_is_explained_by_its_request(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.asked(capsys, "r1", "--memory", "6GiB", "--count", "2")

    said = fleet.run(capsys, "explain", instance_id("r1", 1), "-o", "json")

    assert said.code == 0
    assert [item["instance_id"] for item in said.json["items"]] == [instance_id("r1", 1)]
    assert said.json["summary"]["request_id"] == "r1"
    (item,) = said.json["items"]
    assert item["rerun"]["same"] is True
    assert [fate["outcome"] for fate in item["outcomes"]] == ["granted"]
    assert item["nodes_known"] == sum(each["rejected"] for each in item["rejections"]) + item["passed"]


def test_an_instance_is_explained_by_the_request_that_it_was_placed_by_last_whatever_was_asked_again(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (
        PlacementRequested(request_id=name, flavor=Flavor(memory_mib=1024), instance_ids=('x"\\\x01',)) for name in ("first", "second")
    )
    for request in (first, second, first):
        fleet.append(REQUESTS, request)
        fleet.schedule()
        fleet.now_ms += 60_000

    said = fleet.run(capsys, "explain", 'x"\\\x01', "-o", "json")

    assert said.json["summary"]["request_id"] == "second"


def test_an_instance_without_a_name_of_its_own_is_known_before_its_request_is_answered(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.append(REQUESTS, PlacementRequested(request_id="r1", flavor=Flavor(memory_mib=1024), count=3))

    said = fleet.run(capsys, "explain", instance_id("r1", 2))

    assert said.code == 6
    assert "r1" in said.err
    assert "has no answer yet" in said.err


def test_a_leak_that_is_ignored_is_told_with_the_command_that_shows_it(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    leak_on_c03(fleet)
    for finding_id in fleet.run(capsys, "leaks", "-o", "value", "-c", "finding_id").out.split():
        fleet.run(capsys, "leaks", "ignore", finding_id, "--reason", "known")
    fleet.asked(capsys, "big", "--memory", "12GiB")

    told = fleet.run(capsys, "explain", "big").out

    assert "would fit there -> claimlog leaks --node c03 --explain --ignored\n" in told


def test_one_node_is_asked_of_every_filter(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.asked(capsys, "r1", "--memory", "6GiB", "--vcpus", "17")

    said = fleet.run(capsys, "explain", "r1", "--node", "c02", "-o", "json")

    (item,) = said.json["items"]
    verdicts = {each["filter"]: each["reason"] for each in item["node"]["verdicts"]}
    assert verdicts["ComputeFilter"] == "passes"
    assert "17" in verdicts["CoreFilter"]
    assert "6144" in verdicts["RamFilter"]


def test_a_node_is_asked_about_where_nothing_was_decided(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.append(REQUESTS, PlacementRequested(request_id="r1", flavor=Flavor(vcpus=1, memory_mib=64)))
    fleet.append(REQUESTS, PlacementCancelled(request_id="r1", record_id="taken back"))
    fleet.schedule()

    said = fleet.run(capsys, "explain", "r1", "--node", "nosuch")

    assert said.code == 6
    assert "--node nosuch: the answer to request r1 has no decision" in said.err


def test_a_node_that_was_not_known_then_is_refused(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.asked(capsys, "r1", "--memory", "6GiB")

    said = fleet.run(capsys, "explain", "r1", "--node", "c99")

    assert said.code == 2
    assert "at the decision's cut node 'c99' is not known" in said.err


def test_a_request_without_an_answer_is_incomplete(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r1", "--wait", "0s")

    said = fleet.run(capsys, "explain", "r1")

    assert said.code == 6
    assert "has no answer yet" in said.err


def test_a_request_that_schedulers_were_set_past_is_told_as_such_until_it_is_asked_again(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    asks = ("place", "--memory", "1GiB", "--request", "r1", "--wait", "0s")
    fleet.run(capsys, *asks)
    number = fleet.log.partition(REQUESTS, b"r1")
    fleet.log.commit(GROUP, REQUESTS, {number: 1})

    skipped = fleet.run(capsys, "explain", "r1")
    fleet.run(capsys, *asks)
    again = fleet.run(capsys, "explain", "r1")
    fleet.schedule()

    assert skipped.code == 6
    assert f"will have none: schedulers have read past it, as they go on at {REQUESTS}/{number}@1" in skipped.err
    assert "is a scheduler on this log?" in again.err
    assert fleet.run(capsys, "explain", "r1").code == 0


def test_what_is_no_request_and_no_instance_is_refused(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.audit("c01", {"stranger": 512})

    said = fleet.run(capsys, "explain", "nobody")
    ghost = fleet.run(capsys, "explain", "stranger")

    assert (said.code, ghost.code) == (2, 2)
    assert said.err == "claimlog: 'nobody' is no request and no instance of one on this log\n"
    assert ghost.err == "claimlog: 'stranger' is no request and no instance of one on this log; try `claimlog timeline stranger`\n"
    assert fleet.run(capsys, "timeline", "stranger").code == 0


def test_a_request_that_has_left_the_log_is_not_called_one_that_never_was(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.asked(capsys, "r1", "--memory", "6GiB")
    number = fleet.log.partition(REQUESTS, b"r1")
    fleet.log.truncate(RESULTS, number, fleet.log.end(RESULTS, number))
    unanswered = [fleet.run(capsys, verb, "r1") for verb in ("explain", "cancel")]
    fleet.log.truncate(REQUESTS, number, fleet.log.end(REQUESTS, number))

    gone = [fleet.run(capsys, verb, "r1") for verb in ("explain", "what-if", "cancel")]

    assert [said.code for said in unanswered] == [6, 0]
    assert "claims that nobody uses yet are given back" in unanswered[1].out
    assert [said.code for said in gone] == [6, 6, 6]
    assert all(f"at hand are records from {REQUESTS}/{number}@2" in said.err for said in gone)


def test_every_node_has_every_filter_that_rejects_it_in_wide_and_json(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.asked(capsys, "r1", "--memory", "6GiB", "--vcpus", "17", "--avoid", "c03")

    wide = fleet.run(capsys, "explain", "r1", "-o", "wide").out
    (item,) = fleet.run(capsys, "explain", "r1", "-o", "json").json["items"]

    lines = {line["node_id"]: [each["filter"] for each in line["rejected"]] for line in item["matrix"]["nodes"]}
    assert lines == {
        "c01": ["CoreFilter", "fit"],
        "c02": ["CoreFilter", "RamFilter", "fit"],
        "c03": ["ignored-nodes", "CoreFilter", "fit"],
    }
    assert item["matrix"]["filters"] == [each["filter"] for each in item["rejections"]]
    assert "c03  ignored-nodes: the request ignores it; CoreFilter: vcpus: 17 needed, the whole node has 16; fit: " in wide


def test_the_choice_without_each_weigher_is_named(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    fleet.audit("c04", {}, memory_mib=8192, disk_mib=900_000)
    policy = Policy(weighers=(Multiplied(weigher="RAMWeigher", multiplier=2.0), Multiplied(weigher="DiskWeigher")))
    fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r1", "--wait", "0s")
    fleet.schedule(policy=policy, engine_name="profiles")

    said = fleet.run(capsys, "explain", "r1")
    (item,) = fleet.run(capsys, "explain", "r1", "-o", "json").json["items"]

    assert (item["chosen"], item["engine"]) == ("c03", "profiles")
    assert item["without"] == [{"weigher": "RAMWeigher", "chosen": "c04"}, {"weigher": "DiskWeigher", "chosen": "c03"}]
    assert "without RAMWeigher: c04 · without DiskWeigher: the same" in said.out
    assert "made again, it gives the same choice" in said.out
    weight = item["best"][0]["weights"][0]
    assert (weight["weigher"], weight["raw"], weight["normalised"], weight["multiplied"]) == ("RAMWeigher", 16_384.0, 1.0, 2.0)


@pytest.mark.parametrize("engine", ["reference", "profiles"])
def test_what_cells_and_devices_lack_is_explained_too(fleet: FleetLog, capsys: pytest.CaptureFixture[str], engine: str) -> None:
    cell = NumaCell(cell_id=0, cpus=tuple(range(6)), dedicated_cpus=tuple(range(4)), memory_mib=4096)
    device = PciDevice(address="0000:03:00.0", vendor_id="10de", numa_cell=0)
    fleet.audit("c04", {}, pcpus=4, numa_cells=(cell,), pci_devices=(device,))
    fleet.audit("c05", {}, pcpus=4, numa_cells=(cell,))
    pinned = NumaWant(pinned_cpus=(0, 1), memory_mib=1024, cpu_policy="dedicated")
    gpu = PciWant(alias="gpu", specs=({"vendor_id": "10de"},))
    for name in ("r1", "r2"):
        request = PlacementRequested(request_id=name, flavor=Flavor(pcpus=2, memory_mib=1024), numa=(pinned,), pci=(gpu,))
        path = fleet.path.parent / f"{name}.json"
        path.write_bytes(json.encode(request))
        fleet.run(capsys, "place", str(path), "--wait", "0s")
        fleet.schedule(engine_name=engine)

    first = fleet.run(capsys, "explain", "r1")
    second = fleet.run(capsys, "explain", "r2", "-o", "json")

    assert "chosen: c04" in first.out
    assert "made again, it gives the same choice" in first.out
    (item,) = second.json["items"]
    assert (second.code, item["rerun"]["same"]) == (4, True)
    lines = {line["node_id"]: line["rejected"] for line in item["matrix"]["nodes"]}
    assert [each["reason"] for each in lines["c04"]] == [each["reason"] for each in lines["c05"]]
    assert "pci" in lines["c04"][0]["reason"]
    assert item["nodes_known"] == sum(each["rejected"] for each in item["rejections"])


@pytest.mark.parametrize("too_small", [0, 1])
def test_what_a_large_result_had_no_room_for_is_shown_as_it_comes_out_again(
    too_small: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = FleetLog(tmp_path)
    for number in range(20):
        fleet.audit(f"{number:02}-{'n' * 240}", {}, memory_mib=512 if number < too_small else 65_536)
    fleet.asked(capsys, "large", "--memory", "1GiB", "--count", "1000")
    (record,) = [each for number in fleet.log.ends(RESULTS) for each in fleet.log.read(RESULTS, number, 0) if each.key == b"large"]
    result = decode(RESULTS, record.value)
    assert isinstance(result, InstancesPlaced)
    kept = result.decisions[500]

    (item,) = fleet.run(capsys, "explain", kept.instance_id, "-o", "json").json["items"]
    told = fleet.run(capsys, "explain", kept.instance_id)

    assert (kept.nodes_known - kept.passed, kept.rejections, kept.best, kept.alternates) == (too_small, (), (), ())
    assert item["rerun"]["same"]
    assert item["nodes_known"] == item["passed"] + sum(each["rejected"] for each in item["rejections"])
    assert len(item["best"]) > 1
    assert f"20 = {too_small} rejected + {20 - too_small} left" in told.out
    assert item["alternates"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"engine": "of tomorrow"}, "decided by the engine 'of tomorrow' of another version of claimlog; known: auto"),
        ({"policy_digest": "of-another-log"}, "the text of its policy of-another-log is not at hand"),
        ({"cut": (2, 2, 2)}, "it was decided on 3 partitions of claims, this log has 2"),
        ({"overlay": ("@",)}, "a claim without a name was laid over the decision and is not among the claims at hand"),
        ({"overlay": ("s-1.x@",)}, "s-1.x was laid over the decision and is not among the claims at hand"),
        ({"overlay": ("s-1.1-1000000000000@",)}, "s-1.1 was laid over the decision and is not among the claims at hand"),
    ],
)
def test_a_decision_that_this_version_cannot_make_again_is_told_as_it_was_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], why: str
) -> None:
    (tmp_path / "other").mkdir()
    ours, theirs = FleetLog(tmp_path), FleetLog(tmp_path / "other")
    for fleet in (ours, theirs):
        fleet.audit("c01", {}, memory_mib=8192)
        assert fleet.run(capsys, "place", "--memory", "6GiB", "--request", "r", "--wait", "0s").code == 0
    ours.schedule()
    for number in ours.log.ends(RESULTS):
        for record in ours.log.read(RESULTS, number, 0):
            said = decode(RESULTS, record.value)
            decisions = tuple([structs.replace(each, **changes) for each in getattr(said, "decisions", ())])
            theirs.append(RESULTS, structs.replace(said, decisions=decisions) if isinstance(said, InstancesPlaced) else said)

    told, played = theirs.run(capsys, "explain", "r"), theirs.run(capsys, "what-if", "r")

    assert (told.code, played.code) == (0, 6)
    assert "1 = 0 rejected + 1 left" in told.out
    assert f"it cannot be made again: {why}" in told.out.replace(f"again: {instance_id('r', 0)}: ", "again: ")
    assert why in played.err


def test_an_engine_that_does_not_look_at_all_nodes_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    for number in range(20):
        fleet.audit(f"c{number:02}", {})
    fleet.run(capsys, "place", "--memory", "1GiB", "--request", "r1", "--wait", "0s")
    fleet.schedule(engine_name="first-fit")

    said = fleet.run(capsys, "explain", "r1")

    assert "20 nodes known, 16 looked at: first-fit ends where one fits" in said.out
    assert "16 = 0 rejected + 16 left" in said.out
    assert "made again, it gives the same choice" in said.out


def test_a_request_that_changed_hands_says_that_its_node_was_held_and_stays_there_when_asked_again(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.asked(capsys, "r1", "--memory", "1GiB", turns=1, owner="leaves")
    (held,) = fleet.run(capsys, "claims", "list", "-o", "json").json["items"]
    fleet.schedule()
    there = held["node_id"]

    explained = fleet.run(capsys, "explain", "r1")
    unchanged = fleet.run(capsys, "what-if", "r1", "-o", "json").json["items"]
    drained = fleet.run(capsys, "what-if", "r1", "--drain", there, "-o", "json").json["items"]

    assert explained.code == 0
    assert "made again, it gives the same choice" in explained.out
    assert f"held already, by an earlier claim of this request, on {there}" in explained.out
    assert f"chosen: {there}" in explained.out
    assert [each["chosen"] for each in unchanged] == [there]
    assert drained[0]["chosen"] in {"c01", "c02", "c03"} - {there}


LOUD = """
from pathlib import Path

def not_in_a_loud_rack(ask, room):
    return "its rack is loud" if room.node_id == "c03" else None

def cool(ask, room):
    return float(Path(__file__).with_name("c02.heat").read_text()) if room.node_id == "c02" else 1.0

class EmptyFilter:
    run_filter_once_per_request = True
    def host_passes(self, host_state, spec_obj):
        return not host_state.instances
"""
OWN = """
filters = ["MODULE:not_in_a_loud_rack", "MODULE.EmptyFilter", "RamFilter"]

[[weighers]]
weigher = "RAMWeigher"

[[weighers]]
weigher = "MODULE:cool"
multiplier = 5
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "c02.heat").write_text("2.0")
    with code_of_its_own(tmp_path, LOUD, OWN) as path:
        yield path


def test_code_that_the_recorded_policy_names_is_not_run_on_the_word_of_the_log(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], own: Path
) -> None:
    fleet.decided_by_code(capsys, own, "--memory", "1GiB")
    own.with_name("other.toml").write_text('filters = ["json:loads"]')

    said = [fleet.run(capsys, "explain", "r1", *by) for by in ((), ("--by", "pack"), ("--by", str(own.with_name("other.toml"))))]
    of_node = fleet.run(capsys, "explain", "r1", "--node", "c03")

    why = f"it names code of its own, '{own.parent.name}.EmptyFilter', which is not run on the word of a log"
    how = "a policy file that names it, given with --by, vouches for it"
    for each in said:
        assert (each.code, "chosen: c02" in each.out) == (0, True)
        assert f"it cannot be made again: the policy in the log: {why}; {how}\n" in each.out
    assert (of_node.code, f"the decision cannot be made again: the policy in the log: {why}; {how}" in of_node.err) == (6, True)
    assert own.parent.name not in sys.modules


def test_code_that_the_recorded_policy_names_is_run_if_by_names_it_too(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], own: Path
) -> None:
    fleet.decided_by_code(capsys, own, "--memory", "1GiB", "--count", "2")
    own.with_name("other.toml").write_text("alternates_max = 0\n" + own.read_text())

    told = fleet.run(capsys, "explain", "r1", "--by", str(own), "--node", "c03")
    (first, second) = fleet.run(capsys, "explain", "r1", "--by", str(own.with_name("other.toml")), "-o", "json").json["items"]

    assert told.code == 0
    assert told.out.count("made again, it gives the same choice") == 2
    assert f"{own.parent.name}:not_in_a_loud_rack  3 -> 2  c03: its rack is loud" in told.out
    assert told.out.count(f"{own.parent.name}:not_in_a_loud_rack  its rack is loud") == 2
    assert f"{own.parent.name}:cool 2 (normalised 1.000, counted 5.000)" in told.out
    assert [item["rerun"]["same"] for item in (first, second)] == [True, True]
    assert [item["chosen"] for item in (first, second)] == ["c02", "c02"]
    assert {"weigher": f"{own.parent.name}:cool", "chosen": "c01"} in first["without"]


def test_a_by_that_cannot_be_used_is_refused(fleet: FleetLog, capsys: pytest.CaptureFixture[str], own: Path) -> None:
    fleet.decided_by_code(capsys, own, "--memory", "1GiB")

    said = fleet.run(capsys, "explain", "r1", "--by", "nobody")

    assert (said.code, said.out) == (2, "")
    assert "--by: nobody: No such file" in said.err


def test_code_that_fails_when_it_is_run_again_leaves_what_was_recorded(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], own: Path
) -> None:
    fleet.decided_by_code(capsys, own, "--memory", "1GiB")
    own.with_name("c02.heat").unlink()

    said = fleet.run(capsys, "explain", "r1", "--by", str(own))

    assert said.code == 0
    assert f"it cannot be made again: weigher '{own.parent.name}:cool' failed on node c02: FileNotFoundError" in said.out
    assert "chosen: c02" in said.out


def test_a_request_in_a_partition_where_its_id_does_not_belong_is_told_with_the_way_back(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody reads it there: a program with another partitioner wrote it."""
    own, count = fleet.log.partition(REQUESTS, b"r1"), fleet.log.topics()[REQUESTS]
    other = (own + 1) % count
    request = PlacementRequested(request_id="r1", flavor=Flavor(memory_mib=64))
    fleet.log.append([Message(REQUESTS, b"r1", encode(request), partition=other)])

    refused = [fleet.run(capsys, verb, "r1") for verb in ("explain", "cancel", "what-if")]
    told = fleet.run(capsys, "timeline", "request/r1")

    word = f"a record of it lies at {REQUESTS}/{other}@0, but its id belongs to {REQUESTS}/{own}, so it counts for nothing there"
    assert count > 1
    assert [said.code for said in refused] == [2, 2, 2]
    assert all(f"{word}: `claimlog dead-letters redrive` appends it where it belongs" in said.err for said in (*refused, told))
    assert told.code == 0
