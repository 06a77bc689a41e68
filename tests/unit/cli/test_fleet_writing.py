"""Several who write settings at once: nobody takes back what another said, and each is told what its own word changed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from random import Random
from threading import Barrier, Condition, Thread
from typing import Any

import pytest
from msgspec.structs import replace

from projections.node import Node
from schemas.inventory import OperatorFields
from schemas.topics import CLAIMS
from streams.cli.fleet.file import Change
from streams.cli.fleet.meant import header
from streams.cli.fleet.writing import Wants, write_settings
from streams.cli.problems import UsageProblem
from streams.cli.reading.state import State
from streams.cli.reading.state_at import state_at
from streams.cli.writing import new_stamp
from streams.log.base import LogError, LogUnreachable
from streams.log.sqlite import SqliteLog
from streams.operator import configure
from tests.cli_log import FleetLog

NAMES = tuple(f"c{number:02}" for number in range(12))
SIBLINGS = {"ratio_milli": 1500, "reserved": 512, "max_unit": 4096, "min_unit": 64, "step_size": 64}


def wants(**siblings: int) -> Wants:
    def of(node: Node) -> OperatorFields:
        return OperatorFields(memory_mib=replace(node.memory_mib, **siblings))

    return Wants(of, lambda _: {("memory_mib", name) for name in siblings})


def nodes_of(state: State) -> dict[str, Node]:
    return {node_id: node for node_id in state.node_ids() if (node := state.node(node_id)) is not None}


def read(log: Any) -> State:
    return state_at(log, views=False, pending=False)


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    fleet = FleetLog(tmp_path)
    for name in NAMES:
        fleet.audit(name)
    return fleet


def test_what_several_say_of_one_resource_at_once_all_stands(fleet: FleetLog) -> None:
    together = Barrier(len(SIBLINGS))
    changed: dict[str, dict[str, list[Change]]] = {}

    def apply(name: str, value: int) -> None:
        with SqliteLog.open(fleet.path) as log:
            state = read(log)
            together.wait()
            changed[name] = write_settings(log, state, nodes_of(state), wants(**{name: value}))

    threads = [Thread(target=apply, args=each) for each in SIBLINGS.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for node in nodes_of(read(fleet.log)).values():
        assert {name: getattr(node.memory_mib, name) for name in SIBLINGS} == SIBLINGS, node.node_id
    for name, of_nodes in changed.items():
        assert sorted(of_nodes) == sorted(NAMES)
        field = f"memory_mib.{name.removesuffix('_milli')}"
        assert {change.field for changes in of_nodes.values() for change in changes} == {field}


Said = tuple[OperatorFields, str]
"""A record's fields, and what its header says to be meant of them."""


class Interrupted:
    """A log on which somebody else writes in front of each append, as `others` say, one after the other."""

    def __init__(self, log: Any, others: Iterator[Said | None]) -> None:
        self._log, self._others = log, others

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def append(self, messages: Any) -> Any:
        if (said := next(self._others, None)) is not None:
            self._log.append([configure("c00", new_stamp(), fields=said[0], meant=said[1])])
        return self._log.append(messages)


def rule(fleet: FleetLog, **siblings: int | None) -> OperatorFields:
    node = read(fleet.log).node("c00")
    assert node is not None
    return OperatorFields(memory_mib=replace(node.memory_mib, **siblings))


def meant(fleet: FleetLog, **siblings: int) -> Said:
    return rule(fleet, **siblings), header([("memory_mib", name) for name in siblings], {})


def written(fleet: FleetLog, others: list[Said | None], **siblings: int) -> list[tuple[str, str, str]]:
    state = read(fleet.log)
    there = {"c00": nodes_of(state)["c00"]}
    changed = write_settings(Interrupted(fleet.log, iter(others)), state, there, wants(**siblings))
    return [(change.field, change.before, change.after) for changes in changed.values() for change in changes]


def test_what_stood_in_front_of_a_record_is_told_and_not_what_was_read_before_it(fleet: FleetLog) -> None:
    said = written(fleet, [meant(fleet, ratio_milli=1200, reserved=64)], ratio_milli=1500)

    assert said == [("memory_mib.ratio", "1.2", "1.5")]
    assert rule(fleet).memory_mib == rule(fleet, ratio_milli=1500, reserved=64).memory_mib


def test_what_another_said_alike_in_front_of_a_record_is_no_change_of_it(fleet: FleetLog) -> None:
    assert written(fleet, [meant(fleet, ratio_milli=1500)], ratio_milli=1500) == []


def test_reports_that_come_in_between_are_no_settings(fleet: FleetLog) -> None:
    state = read(fleet.log)
    fleet.audit("c00", {"i1": 512})

    changed = write_settings(fleet.log, state, {"c00": nodes_of(state)["c00"]}, wants(ratio_milli=1500))

    assert [(change.before, change.after) for change in changed["c00"]] == [("1", "1.5")]


def test_what_nobody_could_read_is_not_written(fleet: FleetLog) -> None:
    state, ends = read(fleet.log), fleet.log.ends(CLAIMS)

    with pytest.raises(UsageProblem, match="nobody could read it"):
        write_settings(fleet.log, state, nodes_of(state), wants(reserved=-1))

    assert fleet.log.ends(CLAIMS) == ends


def test_a_field_that_was_as_wanted_and_that_another_set_since_is_the_others(fleet: FleetLog) -> None:
    """Its own record does not have it, so it neither sets it back nor says that it did."""

    def zoned(node: Node) -> OperatorFields:
        return OperatorFields(zone="a", memory_mib=replace(node.memory_mib, reserved=64))

    fleet.log.append([configure("c00", new_stamp(), fields=OperatorFields(zone="a"))])
    state = read(fleet.log)
    log = Interrupted(fleet.log, iter([(OperatorFields(zone="b"), "")]))

    changed = write_settings(log, state, {"c00": nodes_of(state)["c00"]}, Wants(zoned, lambda _: {("memory_mib", "reserved")}))

    assert [change.field for change in changed["c00"]] == ["memory_mib.reserved"]
    now = read(fleet.log).node("c00")
    assert now is not None
    assert (now.zone, now.memory_mib.reserved) == ("b", 64)


def test_what_others_say_while_it_is_put_back_stands_too(fleet: FleetLog) -> None:
    """The second of them does not know of the ratio either, and takes it back."""
    said = written(fleet, [meant(fleet, reserved=64), meant(fleet, reserved=128), None], ratio_milli=1500)

    assert said == [("memory_mib.ratio", "1", "1.5")]
    assert rule(fleet).memory_mib == rule(fleet, ratio_milli=1500, reserved=128).memory_mib


def test_who_is_interrupted_for_ever_says_so(fleet: FleetLog) -> None:
    state = read(fleet.log)
    log = Interrupted(fleet.log, (meant(fleet, reserved=number) for number in count(1)))

    with pytest.raises(LogError, match="others write settings of c00 all the time"):
        write_settings(log, state, {"c00": nodes_of(state)["c00"]}, wants(ratio_milli=1500))


def test_what_does_not_go_with_what_others_set_counts_as_it_was_written_and_is_told(fleet: FleetLog) -> None:
    def at_least(node: Node) -> OperatorFields:
        if node.memory_mib.max_unit is not None:
            raise UsageProblem("min_unit 5000 is above max_unit 3000")
        return OperatorFields(memory_mib=replace(node.memory_mib, min_unit=5000))

    state = read(fleet.log)
    log = Interrupted(fleet.log, iter([meant(fleet, max_unit=3000)]))

    changed = write_settings(log, state, {"c00": nodes_of(state)["c00"]}, Wants(at_least, lambda _: {("memory_mib", "min_unit")}))

    assert [(change.field, change.before, change.after) for change in changed["c00"]] == [
        ("memory_mib.min_unit", "1", "5000"), ("memory_mib.max_unit", "3000", "none"),
    ]  # fmt: skip
    assert rule(fleet).memory_mib == rule(fleet, min_unit=5000, max_unit=None).memory_mib


def test_where_it_fails_after_something_was_written_that_is_said(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    class Away(Interrupted):
        def end(self, *place: Any) -> int:
            raise LogUnreachable("the log went away")

    state = read(fleet.log)

    with pytest.raises(LogUnreachable):
        write_settings(Away(fleet.log, iter(())), state, nodes_of(state), wants(ratio_milli=1500))

    assert "the settings of 12 nodes are written; whether they took back what others set meanwhile was not seen" in capsys.readouterr().err
    assert rule(fleet).memory_mib == rule(fleet, ratio_milli=1500).memory_mib


def test_what_cannot_be_read_back_is_not_taken_for_unchanged(fleet: FleetLog) -> None:
    class Behind(Interrupted):
        def end(self, *place: Any) -> int:
            return state.ends[place[1]]

    state = read(fleet.log)

    with pytest.raises(LogError, match="12 records cannot be read back yet"):
        write_settings(Behind(fleet.log, iter(())), state, nodes_of(state), wants(ratio_milli=1500))


def test_a_record_that_does_not_say_what_it_means_means_all_of_it(fleet: FleetLog) -> None:
    """As a program of somebody else's writes one."""
    said = written(fleet, [(rule(fleet, reserved=64), "")], ratio_milli=1500)

    assert said == [("memory_mib.ratio", "1", "1.5")]
    assert rule(fleet).memory_mib == rule(fleet, ratio_milli=1500, reserved=64).memory_mib


def test_what_one_wrote_who_had_ended_is_not_lost_by_two_who_had_not_both_read_it(fleet: FleetLog) -> None:
    """B read before A wrote, and writes while C, who knows of A's, is about to."""
    early = read(fleet.log)
    written(fleet, [], max_unit=2002)

    class BeforeC(Interrupted):
        def append(self, messages: Any) -> Any:
            if rule(fleet).memory_mib == rule(fleet, ratio_milli=1000).memory_mib:
                write_settings(fleet.log, early, {"c00": nodes_of(early)["c00"]}, wants(ratio_milli=4500))
            return self._log.append(messages)

    state = read(fleet.log)
    write_settings(BeforeC(fleet.log, iter(())), state, {"c00": nodes_of(state)["c00"]}, wants(reserved=107))

    assert rule(fleet).memory_mib == rule(fleet, max_unit=2002, ratio_milli=4500, reserved=107).memory_mib


class Turns:
    """Which of several threads goes on next, drawn whenever all who are left wait for it."""

    def __init__(self, count: int, rng: Random) -> None:
        self._changed, self._rng = Condition(), rng
        self._left, self._waiting, self._next = set(range(count)), set[int](), -1

    def wait(self, number: int) -> None:
        with self._changed:
            self._waiting.add(number)
            self._draw()
            self._changed.wait_for(lambda: self._next == number)
            self._next = -1
            self._waiting.discard(number)

    def leave(self, number: int) -> None:
        with self._changed:
            self._left.discard(number)
            self._draw()

    def _draw(self) -> None:
        if self._left and self._waiting == self._left and self._next < 0:
            self._next = self._rng.choice(sorted(self._waiting))
            self._changed.notify_all()


@pytest.mark.parametrize("seed", range(30))
def test_whatever_several_say_in_whatever_order_each_amount_is_the_last_that_was_said_of_it(fleet: FleetLog, seed: int) -> None:
    """Each begins to read, appends and reads on when it is its turn. Who named an amount last, in the order of the log, has it."""
    rng = Random(seed)
    names = ["ratio_milli", "reserved", "max_unit", "step_size"]
    said = [{name: 10 * (who + 1) + rng.randrange(5) for name in rng.sample(names, rng.randint(1, 3))} for who in range(4)]
    turns, first, failed = Turns(len(said), rng), dict[int, int](), list[BaseException]()

    class InTurns(Interrupted):
        number = 0

        def append(self, messages: Any) -> Any:
            turns.wait(self.number)
            offsets = self._log.append(messages)
            first.setdefault(self.number, offsets[0])
            turns.wait(self.number)
            return offsets

    def apply(number: int) -> None:
        try:
            with SqliteLog.open(fleet.path) as log:
                mine = InTurns(log, iter(()))
                mine.number = number
                turns.wait(number)
                state = read(log)
                write_settings(mine, state, {"c00": nodes_of(state)["c00"]}, wants(**said[number]))
        except BaseException as problem:
            failed.append(problem)
        finally:
            turns.leave(number)

    threads = [Thread(target=apply, args=(number,)) for number in range(len(said))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert failed == []
    last = {name: value for who in sorted(first, key=first.__getitem__) for name, value in said[who].items()}
    assert rule(fleet).memory_mib == rule(fleet, **last).memory_mib
