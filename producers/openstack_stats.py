"""What Nova's compute services count of their instances, followed by notifications: I/O operations, and builds that failed in a row."""

from __future__ import annotations

from producers.nova_stats import InstanceState, failed_builds, io_workload
from producers.openstack_payloads import InstanceFact

BY_POLICY = frozenset({"GroupAffinityViolation"})
"""Errors of builds that are no fault of the host's: Nova counts these neither as failed nor as done."""
_BUILD = "instance.create"


class HostStats:
    """The figures of all hosts, by the names of their services; facts have to come in order."""

    def __init__(self) -> None:
        self._hosts: dict[str, str] = {}
        """Where each instance's record stands."""
        self._states: dict[str, dict[str, InstanceState]] = {}
        """Instances by host."""
        self._failed_builds: dict[str, int] = {}
        self._open: set[tuple[str, str]] = set()
        """Builds that have begun and not ended: instance and host."""

    def took(self, fact: InstanceFact) -> set[str]:
        """Take one fact; returns the hosts whose figures may be others now."""
        touched = {self._hosts.pop(fact.instance_id, ""), fact.host}
        for host in touched:
            self._states.get(host, {}).pop(fact.instance_id, None)
        state = InstanceState(instance_id=fact.instance_id, vm_state=fact.state or None, task_state=fact.task or None)
        if fact.host and state.counts:
            self._hosts[fact.instance_id] = fact.host
            self._states.setdefault(fact.host, {})[fact.instance_id] = state
        if fact.action == _BUILD:
            touched.add(self._built(fact))
        return touched - {""}

    def _built(self, fact: InstanceFact) -> str:
        """Count how a build went, once however often it is said (`notification_format = both`); returns its host.

        It is the service that builds which says so; the record of what failed may stand nowhere.
        """
        build, host = (fact.instance_id, fact.compute), fact.compute
        if fact.phase == "start":
            self._open.add(build)
        elif build in self._open and fact.phase in {"end", "error"}:
            self._open.remove(build)
            if fact.fault not in BY_POLICY:
                self._failed_builds[host] = failed_builds(self._failed_builds.get(host, 0), succeeded=fact.phase == "end")
        return host

    def io_workload(self, host: str) -> int:
        """Builds, moves, rebuilds and snapshots going on there."""
        return io_workload(self._states.get(host, {}).values())

    def failed_builds(self, host: str) -> int:
        """How many builds failed there since the last one that did not."""
        return self._failed_builds.get(host, 0)
