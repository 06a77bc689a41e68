"""Storage pools that a look at them stops, on a real libvirtd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("libvirt", reason="libvirt-python is not installed: it needs libvirt-dev, pkg-config and gcc, then `make setup`")

import libvirt

from producers.libvirt_pools import PoolRefresh, Stopped, look_at_pools
from producers.libvirt_system import Options
from tests.libvirt_daemon import NOBODY, Daemon
from tests.libvirt_reporting import Reporting

pytestmark = pytest.mark.usefixtures("libvirt_events")


@pytest.fixture
def pools(daemon: Daemon) -> Iterator[dict[str, Any]]:
    """Two pools of libvirt's own, each a folder."""
    handle = libvirt.open(daemon.uri)
    pools = {}
    for name in ("instances", "other"):
        path = daemon.folder / name
        path.mkdir(exist_ok=True)
        if os.getuid() == 0:
            os.chown(path, NOBODY, NOBODY)
        pools[name] = handle.storagePoolDefineXML(f"<pool type='dir'><name>{name}</name><target><path>{path}</path></target></pool>")
        pools[name].create()
    yield pools
    for pool in pools.values():
        if pool.isActive():
            pool.destroy()
        pool.undefine()
    handle.close()


@contextmanager
def away(daemon: Daemon, name: str) -> Iterator[None]:
    """Within, the pool's folder is not there, as while an NFS server starts anew."""
    path = daemon.folder / name
    path.rename(path.with_suffix(".away"))
    yield
    path.with_suffix(".away").rename(path)


def looked_again(reporting: Reporting) -> Any:
    """The audit after the next look at the pools."""
    rounds: Any = reporting.host._auditor.rounds
    before = rounds._refreshing
    reporting.pump_until(lambda: (now := rounds._refreshing) not in (None, before) and now.done)
    return reporting.audit()


@pytest.mark.parametrize("named", [None, ("instances",)])
def test_a_pool_that_a_look_at_it_stopped_is_said_until_it_is_there_and_then_started_again(
    daemon: Daemon, pools: dict[str, Any], named: tuple[str, ...] | None
) -> None:
    reporting = Reporting(daemon.uri, options=Options(refresh_pools=True, pools=named))
    before = reporting.audit().hypervisor

    with away(daemon, "instances"):
        reporting.pump_until(lambda: not pools["instances"].isActive())
        pools["other"].destroy()
        audits = [reporting.audit(), *(looked_again(reporting) for _ in range(3))]
    reporting.pump_until(pools["instances"].isActive)
    after = reporting.audit().hypervisor
    reporting.host.close()

    assert before.disk_mib is not None
    told = [audit.hypervisor for audit in audits if audit.hypervisor is not None]
    assert {host.disk_mib for host in told} == {None}
    assert told[-1].stats["storage_pools"].startswith("not refreshed: instances: cannot open")
    assert all(audit.complete for audit in audits)
    assert after.disk_mib == before.disk_mib
    assert "storage_pools" not in after.stats
    assert not pools["other"].isActive()


def test_a_pool_that_was_started_and_stopped_by_others_after_a_look_stopped_it_stays_stopped(daemon: Daemon, pools: dict[str, Any]) -> None:
    reporting = Reporting(daemon.uri, options=Options(refresh_pools=True), disks_every_ms=1_000)
    reporting.audit()
    with away(daemon, "instances"):
        reporting.pump_until(lambda: not pools["instances"].isActive())

    pools["instances"].create()
    reporting.audit()
    pools["instances"].destroy()
    for _ in range(2):
        looked_again(reporting)
    reporting.host.close()

    assert not pools["instances"].isActive()
    assert pools["other"].isActive()


def test_a_pool_that_is_just_being_looked_at_counts(daemon: Daemon, pools: dict[str, Any]) -> None:
    handle = libvirt.open(daemon.uri)

    class NotedMeanwhile(dict[str, Stopped]):
        """A look begins as soon as an audit has seen which pools are stopped."""

        def __iter__(self) -> Iterator[str]:
            yield from list(super().__iter__())
            self[pools["instances"].UUIDString()] = Stopped("instances", "")

    storage = look_at_pools(handle, ("instances",), NotedMeanwhile())
    handle.close()

    assert storage is not None


def test_a_pool_is_not_taken_for_stopped_by_a_look_of_which_nobody_could_say_how_it_ended() -> None:
    """The connection is lost meanwhile. A later look would else start a pool that an operator has stopped since."""

    def lost(*_: object) -> None:
        raise libvirt.libvirtError("the connection is lost")

    pool = SimpleNamespace(UUIDString=lambda: "u", name=lambda: "instances", refresh=lost)
    active = libvirt.VIR_CONNECT_LIST_STORAGE_POOLS_ACTIVE
    handle = SimpleNamespace(listAllStoragePools=lambda flags: [pool] if flags == active else lost())
    refresh = PoolRefresh(None)

    with pytest.raises(libvirt.libvirtError):
        refresh.run(handle)

    assert refresh.stopped == {}
