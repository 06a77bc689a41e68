"""Looks at hosts with many domains: two connections read side by side, and a domain whose XML hangs costs nobody but itself.

The domains are those of libvirt's test driver. That the XML of one does not come, or a connection ends, is laid over its handle here: a
real libvirtd does it now and then, and never when it is asked to.
"""

# ruff: noqa: E402 - what is imported below the check needs libvirt, which may not be installed

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

libvirt = pytest.importorskip(
    "libvirt", reason="libvirt-python is not installed: it needs libvirt-dev, pkg-config and gcc, then `make setup`"
)

from producers.libvirt_audit import Auditor, Look
from producers.libvirt_connect import Connection, HypervisorUnreachable, connect
from producers.libvirt_domains import SIDE_BY_SIDE_MIN, Known, Survey
from producers.libvirt_host import LibvirtHost
from producers.libvirt_system import Options
from schemas.audits import HypervisorAudited
from tests.libvirt_daemon import domain_id, node_xml, until

pytestmark = pytest.mark.usefixtures("libvirt_events")
DOMAINS = 2 * SIDE_BY_SIDE_MIN
ALL = [domain_id(number) for number in range(DOMAINS)]

Asked = Callable[[str], None]
"""Called with a domain's id before its XML is asked for; it may wait, or raise."""


@pytest.fixture
def uri(tmp_path: Path) -> str:
    path = tmp_path / "node.xml"
    path.write_text(node_xml(range(DOMAINS)))
    return f"test://{path}"


class Watched:
    """A handle, or a domain of it, whose reads of XML are announced."""

    def __init__(self, inner: Any, asked: Asked) -> None:
        self._inner, self._asked = inner, asked

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def XMLDesc(self, flags: int) -> str:  # noqa: N802 - libvirt's name
        self._asked(self._inner.UUIDString())
        text: str = self._inner.XMLDesc(flags)
        return text

    def getAllDomainStats(self, *flags: int) -> list[Any]:  # noqa: N802
        return [(Watched(domain, self._asked), said) for domain, said in self._inner.getAllDomainStats(*flags)]

    def listAllDomains(self, flags: int) -> list[Any]:  # noqa: N802
        return [Watched(domain, self._asked) for domain in self._inner.listAllDomains(flags)]


def watched(uri: str, asked: Asked) -> Connection:
    """A connection of its own, whose reads are announced to `asked`."""
    connection = connect(uri)
    connection.handle = Watched(connection.handle, asked)
    return connection


def assert_in_time(event: threading.Event) -> None:
    assert event.wait(20)


def look(auditor: Auditor, first: Connection, second: Connection | None = None, seconds: float = 20.0) -> Look:
    auditor.look(first, taken_at_ms=1_000, timeout_seconds=seconds, second_connection=(lambda: second) if second is not None else None)
    return auditor.result()


def new_auditor() -> Auditor:
    return Auditor(Options(), lambda: 1_000, lambda: 10)


def test_two_connections_share_the_reading_and_find_what_one_finds(uri: str) -> None:
    by_first, by_second = list[str](), list[str]()
    met = threading.Barrier(2, timeout=20)

    def meets(read: list[str]) -> Asked:
        """Both read at once: each waits for the other at its first domain."""

        def asked(instance_id: str) -> None:
            if not read:
                met.wait()
            read.append(instance_id)

        return asked

    first = watched(uri, meets(by_first))
    found = look(new_auditor(), first, watched(uri, meets(by_second)))

    assert by_first
    assert by_second
    assert sorted(by_first + by_second) == ALL
    assert found == look(new_auditor(), connect(uri))
    assert found.unknown_instances == ()


def test_few_domains_are_read_over_one_connection(uri: str) -> None:
    auditor, opened, may_read = new_auditor(), list[str](), threading.Event()
    first = watched(uri, lambda _: assert_in_time(may_read))
    may_read.set()
    look(auditor, first)

    def refuse() -> Connection:
        opened.append(uri)
        may_read.set()
        raise HypervisorUnreachable("not today")

    few = frozenset(ALL[: SIDE_BY_SIDE_MIN - 1])
    auditor.look(first, taken_at_ms=2_000, timeout_seconds=20, changed=few, second_connection=refuse)
    assert opened == []

    may_read.clear()  # else all is read, on a busy machine, before anybody looks how much is left
    auditor.look(first, taken_at_ms=3_000, timeout_seconds=20, changed=frozenset(ALL), second_connection=refuse)
    assert opened == [uri]
    assert auditor.result().unknown_instances == ()


@pytest.mark.parametrize("hanging", ["first", "second"])
def test_a_domain_that_hangs_is_unknown_and_all_others_are_read(uri: str, hanging: str) -> None:
    threads = threading.active_count()
    returns, stuck, hangs = threading.Event(), list[str](), threading.Event()

    def hang(instance_id: str) -> None:
        stuck.append(instance_id)
        hangs.set()
        assert returns.wait(30)

    def wait_for_it(_: str) -> None:
        assert hangs.wait(20)

    asked = {"first": wait_for_it, "second": wait_for_it, hanging: hang}
    auditor, first, second = new_auditor(), watched(uri, asked["first"]), watched(uri, asked["second"])
    during = look(auditor, first, second, seconds=2.0)
    assert during.unknown_instances == tuple(stuck)
    assert len(stuck) == 1
    assert sorted(report.instance_id for report in during.instances) == ALL
    known = [report for report in during.instances if report.instance_id not in stuck]
    assert {report.resources.memory_mib for report in known} == {512}

    # It is passed by while its call has not returned, and read again after it has.
    well = connect(uri)
    assert look(auditor, well).unknown_instances == tuple(stuck)
    returns.set()
    until(lambda: look(auditor, well).unknown_instances == ())

    for connection in (first, second, well):
        connection.close()
    until(lambda: threading.active_count() <= threads)


def test_what_a_lost_second_connection_had_begun_is_unknown_and_read_at_the_next_look(uri: str) -> None:
    lost, begun = list[str](), threading.Event()

    def lose(instance_id: str) -> None:
        lost.append(instance_id)
        begun.set()
        raise libvirt.libvirtError("the daemon went away")

    def wait_for_it(_: str) -> None:
        assert begun.wait(20)

    second = watched(uri, lose)
    second.handle.isAlive = lambda: False
    auditor, first = new_auditor(), watched(uri, wait_for_it)

    assert look(auditor, first, second).unknown_instances == tuple(lost)
    assert len(lost) == 1
    assert look(auditor, first).unknown_instances == ()


def test_a_second_connection_that_does_not_even_list_keeps_nobody_waiting(uri: str) -> None:
    returns, lists = threading.Event(), threading.Event()

    class Silent(Watched):
        def listAllDomains(self, flags: int) -> list[Any]:  # noqa: N802
            lists.set()
            assert returns.wait(60)
            return super().listAllDomains(flags)

    def wait_for_it(_: str) -> None:
        assert lists.wait(20)

    second = connect(uri)
    second.handle = Silent(second.handle, lambda _: None)
    auditor, began = new_auditor(), time.monotonic()
    found = look(auditor, watched(uri, wait_for_it), second, seconds=40.0)

    assert time.monotonic() - began < 20
    assert found.unknown_instances == ()
    assert second.busy

    # What comes of it later has no part in anything.
    returns.set()
    until(lambda: not second.busy)
    assert auditor.result() == found


def test_a_defect_is_not_hidden_by_which_connection_came_upon_it(uri: str) -> None:
    begun = threading.Event()

    def break_down(_: str) -> None:
        begun.set()
        raise ZeroDivisionError

    def wait_for_it(_: str) -> None:
        assert begun.wait(20)

    with pytest.raises(ZeroDivisionError):
        look(new_auditor(), watched(uri, wait_for_it), watched(uri, break_down))


def test_a_domain_whose_xml_comes_just_after_the_deadline_is_not_taken_for_read(uri: str) -> None:
    class JustBefore(dict[str, Known]):
        """What was read. Right after somebody took it over, the domain that was asked for comes."""

        def __iter__(self) -> Iterator[str]:
            yield from list(super().keys())
            survey.found = {ALL[0]: known}
            survey.unread.discard(ALL[0])

        def keys(self) -> Any:
            return iter(self)

    connection, auditor = connect(uri), new_auditor()
    before = look(auditor, connection)
    known = auditor._known[ALL[0]]
    auditor._known.clear()
    survey = Survey({}, auditor.disks)
    survey.listed, survey.found, survey.unread = auditor._listed, JustBefore(), set(ALL)
    auditor._keep(survey, 2_000)

    assert before.unknown_instances == ()
    assert ALL[0] in auditor.result().unknown_instances


def test_a_host_keeps_its_second_connection_until_it_is_left(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("producers.libvirt_domains.SIDE_BY_SIDE_MIN", 0)  # in this process all may be read before a second is asked for
    threads, opened = threading.active_count(), list[Connection]()
    host = LibvirtHost(
        uri,
        lambda *_: None,
        options=Options(),
        last_epoch=lambda *_: None,
        wall_ms=lambda: time.time_ns() // 1_000_000,
        mono_ms=lambda: time.monotonic_ns() // 1_000_000,
        node_id="c01",
    )
    for _ in range(3):
        record = host.audit()
        assert isinstance(record, HypervisorAudited)
        assert record.complete
        assert host._second is not None
        opened.append(host._second)
    assert len(set(map(id, opened))) == 1

    opened[0].close()  # as if it was lost: the next long look has another
    host.audit()
    assert host._second not in (None, opened[0])

    host.close()
    until(lambda: threading.active_count() <= threads)


def test_what_a_lost_connection_was_at_is_let_go_at_once(uri: str) -> None:
    """Its domains keep its socket open, and nobody knows when garbage is collected."""
    held = list[weakref.ref[Any]]()

    def lose(handle: Any) -> None:
        held.extend(map(weakref.ref, domains := handle.listAllDomains(0)))
        raise libvirt.libvirtError(f"the daemon went away over {len(domains)} domains")

    connection = connect(uri)
    gc.disable()
    try:
        with pytest.raises(HypervisorUnreachable, match=f"went away over {DOMAINS} domains"):
            connection.ask(lose, 20.0)
        until(lambda: not any(each() for each in held))
    finally:
        gc.enable()
    connection.close()


def test_a_host_that_fails_before_there_is_a_list_fails_at_once(uri: str) -> None:
    class Failing(Watched):
        def getInfo(self) -> Any:  # noqa: N802
            raise libvirt.libvirtError("no information today")

    first = connect(uri)
    first.handle = Failing(first.handle, lambda _: None)

    with pytest.raises(HypervisorUnreachable, match="no information today"):
        new_auditor().look(first, taken_at_ms=1, timeout_seconds=3600, second_connection=lambda: connect(uri))
