"""A hypervisor reported within the test's own process, for what its producer says to be looked at."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from producers.libvirt_host import LibvirtHost
from producers.libvirt_system import Options
from schemas.codec import decode_keyed
from schemas.topics import AUDITS
from tests.libvirt_daemon import until


class Reporting:
    """A host that is reported, and what was published of it."""

    def __init__(self, uri: str, node_id: str = "c01", **options: Any) -> None:
        self.node_id = node_id
        self.audits: list[Any] = []
        self.events: list[Any] = []
        self.sizes: list[int] = []
        given: dict[str, Any] = {"audit_timeout_seconds": 30.0, "disks_every_ms": 100, "chance": lambda: 0.0, "node_id": node_id}
        given["wall_ms"] = lambda: time.time_ns() // 1_000_000
        self.host = LibvirtHost(
            uri,
            self._publish,
            **({"options": Options()} | given | options),
            last_epoch=lambda *_: None,
            mono_ms=lambda: time.monotonic_ns() // 1_000_000,
        )

    def _publish(self, topic: str, key: bytes, value: bytes, headers: Any) -> None:
        assert key == self.node_id.encode()
        (self.audits if topic == AUDITS else self.events).append(decode_keyed(topic, key, value))
        self.sizes += [len(value)] if topic == AUDITS else []

    def audit(self) -> Any:
        self.host.audit()
        return self.audits[-1]

    def until_told(self, count: int) -> list[Any]:
        """The next events, `count` at least."""
        before = len(self.events)

        def told() -> bool:
            self.host.pump(0.05)
            return len(self.events) >= before + count

        until(told)
        return self.events[before:]

    def pump_until(self, holds: Callable[[], Any]) -> None:
        def held() -> Any:
            self.host.pump(0.05)
            return holds()

        until(held)
