"""What the bytes of a record may name: no record that names a subject is passed over undecoded, and most others are."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from projections.subjects import KINDS, Subject, concerns
from schemas.codec import Unreadable, decode
from schemas.ids import instance_id
from schemas.requests import Flavor, Hints, PlacementRequested
from schemas.topics import REQUESTS, RESULTS, TOPICS
from streams.cli import events
from streams.cli.reading.naming import Naming
from streams.log.base import Record
from tests.any_record import NAMES, OTHER_NAMES, AnyRecord
from tests.cli_log import FleetLog


# Results have scores, which are not drawn there; every id is a required field of theirs.
@pytest.mark.parametrize("topic", [name for name, topic in TOPICS.items() if topic.records is not None and name != RESULTS])
def test_a_record_that_concerns_a_subject_may_name_it_however_it_is_spelled(topic: str) -> None:
    any_record, names = AnyRecord(Random(1)), {*OTHER_NAMES, *(name for some in NAMES.values() for name in some)}

    for _ in range(200):
        drawn = any_record.draw(topic)
        plain = msgspec.json.encode(drawn)
        for value in (plain, json.dumps(json.loads(plain)).encode(), plain.replace(b"n1", b"\\u006e1")):
            event = decode(topic, value)
            for name in () if isinstance(event, Unreadable) else names:
                if any(concerns(event, Subject(kind, name)) for kind in KINDS):
                    assert Naming([name]).may_name(Record(topic, 0, 0, 0, b"", value)), (name, value)
                if concerns(event, Subject("instance", name)):
                    assert Naming((), [name]).may_name(Record(topic, 0, 0, 0, b"", value)), (name, value)


def test_an_instance_whose_id_follows_from_its_request_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.append(REQUESTS, PlacementRequested(request_id="r1", flavor=Flavor(memory_mib=512)))

    said = fleet.run(capsys, "events", "--for", f"instance/{instance_id('r1', 0)}", "-o", "json")

    assert [item["type"] for item in said.json["items"]] == ["placement-requested"]


class Searched(bytes):
    """Bytes that count how often something is looked for in them."""

    times = 0

    def __contains__(self, text: object) -> bool:
        self.times += 1
        return super().__contains__(text)  # type: ignore[operator]


def test_the_instances_of_a_large_request_are_not_looked_for_one_by_one() -> None:
    instances = [instance_id("r1", number) for number in range(1000)]
    naming = Naming(["r1"], instances)
    others = Searched(msgspec.json.encode([instance_id("r2", number) for number in range(3)]))

    assert not naming.may_be_in(others)
    assert others.times == 2
    assert all(naming.may_be_in(msgspec.json.encode({"instance_id": name})) for name in instances)
    assert naming.may_be_in(b'{"instance_id":"\\u0069-1"}')


def test_records_that_do_not_name_the_subject_are_not_decoded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = FleetLog(tmp_path)
    for number in range(50):
        fleet.audit(f"n{number:02d}")  # no name that the log's own id, in hexadecimal digits, may have in it by chance
    seen: list[str] = []
    decoded = events.decoded

    def noted(record: Record) -> Any:
        seen.append(str(record.position))
        return decoded(record)

    monkeypatch.setattr(events, "decoded", noted)

    items = fleet.run(capsys, "events", "--for", "node/n07", "-o", "json").json["items"]

    assert {item["key"] for item in items} == {"n07"}
    assert {*seen} == {item["position"] for item in items}


def test_requests_that_want_to_be_near_an_instance_or_apart_from_it_name_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    wants = (Hints(same_host=("i9",)), Hints(different_host=("i9", "i8")), Hints(different_host=("i8",)))
    for number, hints in enumerate(wants):
        fleet.append(REQUESTS, PlacementRequested(request_id=f"r{number}", flavor=Flavor(vcpus=1), hints=hints))

    items = fleet.run(capsys, "events", "--for", "instance/i9", "-o", "json").json["items"]

    assert [item["key"] for item in items] == ["r0", "r1"]
