"""Rounds of asking guests: who is said to answer has answered, and who was not asked is not said to.

The guests are stand-ins: a real QEMU hangs for as long as it is stopped, but libvirt gives up another client's question after 30 s.
"""

# ruff: noqa: E402 - what is imported below the check needs libvirt, which may not be installed

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

libvirt = pytest.importorskip(
    "libvirt", reason="libvirt-python is not installed: it needs libvirt-dev, pkg-config and gcc, then `make setup`"
)

from producers.libvirt_connect import Connection, Worker
from producers.libvirt_disks import DiskSize, Guest
from producers.libvirt_rounds import ANSWER_MS, STUCK_MAX, Rounds
from producers.libvirt_system import Options
from producers.libvirt_xml import Disk, Domain
from tests.libvirt_daemon import until

NAMES = ("a", "b", "c", "d", "e", "f")


class StandIn:
    """A guest: asked while it `hangs`, its call waits, and ends as `answer` says. Of one that cannot be asked libvirt leaves things out."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.hangs = False
        self.returns = threading.Event()
        self.gives_up = False
        self.asked = 0

    def controlInfo(self) -> tuple[int, int, int]:  # noqa: N802 - libvirt's name
        return libvirt.VIR_DOMAIN_CONTROL_OK, 0, 0

    def memoryStats(self) -> dict[str, int]:  # noqa: N802
        self.asked += 1
        if self.hangs:
            self.returns.wait(30)
        if self.gives_up:
            error = libvirt.libvirtError("cannot acquire state change lock")
            error.err = (libvirt.VIR_ERR_OPERATION_TIMEOUT, 0, "cannot acquire state change lock", 2, None, None, None, 0, 0)
            raise error
        return {"actual": 1}


class Host:
    """A connection to all of the guests."""

    def __init__(self) -> None:
        self.guests = {name: StandIn(name) for name in NAMES}
        self.wall_ms = 1_000_000
        self.mono_ms = 0
        self.rounds = Rounds(Options(), lambda: self.wall_ms, lambda: self.mono_ms)

    def pass_time(self, milliseconds: int) -> None:
        self.wall_ms += milliseconds
        self.mono_ms += milliseconds

    def open(self) -> Connection:
        return Connection("stand-in:", self, Worker("stand-in"))

    def ask(self, names: str = "abcdef") -> dict[str, DiskSize]:
        """One round, to its end."""
        told: list[dict[str, DiskSize]] = []
        self.rounds.start(self.open, [Guest(name, domain(name), is_active=True) for name in names])

        def is_over() -> bool:
            if self.rounds._look is not None and (at := self.rounds._look.at) is not None and self.guests[at[0]].asked:
                hangs = self.guests[at[0]].hangs and not self.guests[at[0]].returns.is_set()
                self.pass_time(ANSWER_MS + 1 if hangs else 0)
            if (sizes := self.rounds.tend()) is not None:
                told.append(sizes)
            return not self.rounds.running

        until(is_over)
        return told[0] if told else {}

    def unknown(self) -> dict[str, int]:
        return {name: stuck.since_ms for name, stuck in sorted(self.rounds.stuck.items())}

    def hang(self, names: str) -> None:
        for name in names:
            self.guests[name].hangs = True

    def let_go(self, name: str, *, gives_up: bool = False) -> None:
        guest = self.guests[name]
        pending = self.rounds.stuck[name].pending
        assert pending is not None
        guest.gives_up = gives_up
        guest.returns.set()
        until(lambda: pending.done)
        guest.hangs, guest.returns = False, threading.Event()
        self.rounds.tend()

    def numOfStoragePools(self) -> int:  # noqa: N802
        return 0

    def lookupByUUIDString(self, instance_id: str) -> StandIn:  # noqa: N802
        return self.guests[instance_id]

    def domainListGetStats(self, domains: list[StandIn], *flags: int) -> list[Any]:  # noqa: N802
        del flags
        (guest,) = domains
        if guest.gives_up:  # no error, and not all
            return [(guest, {"block.count": 1, "block.0.path": f"/{guest.name}"})]
        return [(guest, {"block.count": 1, "block.0.path": f"/{guest.name}", "block.0.capacity": 8, "block.0.physical": 4})]

    def isAlive(self) -> bool:  # noqa: N802
        return True

    def unregisterCloseCallback(self) -> None:  # noqa: N802
        pass

    def close(self) -> None:
        pass


def domain(name: str) -> Domain:
    disks = (Disk(path=f"/{name}"),)
    return Domain(
        instance_id=name, name=name, vcpus=1, memory_mib=1, pinned_cpus=(), emulator_cpus=(), numa_cells=(), pci_addresses=(), disks=disks
    )


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    for guest in host.guests.values():
        guest.returns.set()


def test_a_guest_of_which_libvirt_gave_up_the_question_has_not_answered(host: Host) -> None:
    host.ask()
    answered_ms = host.wall_ms
    host.pass_time(60_000)
    host.hang("b")
    host.ask()
    during = host.unknown()
    host.let_go("b", gives_up=True)
    given_up = host.unknown()
    again = host.ask()
    refused = host.unknown()
    host.guests["b"].gives_up = False
    host.ask()

    assert during == given_up == refused == {"b": answered_ms}
    assert set(again) == {f"/{name}" for name in "acdef"}
    assert host.unknown() == {}


def test_a_guest_whose_call_returns_with_an_answer_answers_again(host: Host) -> None:
    host.hang("b")
    host.ask()
    host.let_go("b")
    host.pass_time(60_000)
    host.hang("b")
    answered_ms = host.wall_ms - 60_000
    host.ask()

    assert host.unknown() == {"b": answered_ms}


def test_guests_that_are_not_asked_since_others_hang_are_unknown_and_what_was_found_before_is_kept(host: Host) -> None:
    host.ask("abce")
    answered_ms = host.wall_ms
    host.pass_time(60_000)
    host.hang("bcd")

    found = host.ask()

    assert len("bcd") == STUCK_MAX
    assert set(found) == {"/a"}
    assert set(host.unknown()) == set("bcdef")
    assert [host.guests[name].asked for name in "ef"] == [1, 0]
    assert {name: since for name, since in host.unknown().items() if name in "bce"} == dict.fromkeys("bce", answered_ms)
    assert [name for name, stuck in host.rounds.stuck.items() if not stuck.is_waited_for] == ["e", "f"]


def test_a_guest_that_was_passed_over_is_asked_when_there_is_room_again(host: Host) -> None:
    host.hang("bcd")
    host.ask()
    host.ask("ef")
    still = set(host.unknown())
    host.let_go("c")
    found = host.ask("ef")

    assert still == set("bcdef")
    assert set(found) == {"/e", "/f"}
    assert set(host.unknown()) == {"b", "d"}


def test_a_guest_that_was_passed_over_and_has_stopped_is_stopped(host: Host) -> None:
    host.hang("bcd")
    host.ask()
    host.rounds.forget("abcdef", set("abcdf"))

    assert set(host.unknown()) == set("bcdf")
