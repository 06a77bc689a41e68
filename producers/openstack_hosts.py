"""What a cloud's hypervisors have, from Nova's own list of them: notifications never say it.

The list is the answer of `GET /os-hypervisors/detail` up to microversion 2.87; from 2.88 on Nova no longer gives totals there. It becomes
incomplete audits of its nodes: totals are known, of instances it says nothing.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from producers.source import audit_digest
from schemas.audits import HypervisorAudited
from schemas.inventory import CpuInfo, Hypervisor, SupportedGuest
from schemas.units import AMOUNT_MAX, GIB, Amount, Count, Name, Text

Gib = Annotated[int, Meta(ge=0, le=AMOUNT_MAX // GIB)]
TOTALS_MISSING = "it has no vcpus, memory_mb or local_gb; ask for it at microversion 2.87 or below (2.88 dropped them)"
CLIENT_HOSTNAME = "Hypervisor Hostname"
"""A heading of the command line client's own list."""
OF_THE_CLIENT = "`openstack hypervisor list` says no disk; ask the API for os-hypervisors/detail, as docs/openstack.md says"
ONE_PAGE = "this is one page of several; ask for the list at microversion 2.32, which gives all of it at once"


class ListedHost(Struct, frozen=True):
    """One hypervisor of the list. One that is down is not told: whoever waits for its audits finds it silent, as Nova does."""

    host: str
    node_id: str
    hypervisor: Hypervisor
    is_down: bool = False
    is_disabled: bool = False
    is_enabled: bool = False
    """It says both that it is up and that it is enabled; who says neither says nothing of its service."""
    reason: str = ""


class _Service(Struct):
    host: Name
    disabled_reason: Text | None = None


class _Listed(Struct):
    hypervisor_hostname: Name
    service: _Service | None = None
    vcpus: Count | None = None
    memory_mb: Amount | None = None
    local_gb: Gib | None = None
    host_ip: Text | None = ""
    hypervisor_type: Text = ""
    hypervisor_version: Count = 0
    cpu_info: dict[str, Any] | str | None = None
    state: Text | None = None
    status: Text | None = None


def read_hypervisors(text: bytes) -> list[ListedHost]:
    """The hypervisors of a list. Raises ValueError that says what was expected and where."""
    try:
        document = msgspec.json.decode(text.removeprefix(BOM_UTF8))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"expected JSON: {error}") from None
    except RecursionError:
        raise ValueError("expected a list of hypervisors, this is nested too deep to be one") from None
    entries = document.get("hypervisors") if isinstance(document, dict) else document
    if not isinstance(entries, list):
        raise ValueError('expected {"hypervisors": [...]} as GET /os-hypervisors/detail answers, or a list of hypervisors')
    if isinstance(document, dict) and document.get("hypervisors_links"):
        raise ValueError(ONE_PAGE)
    listed = [_listed(number, entry) for number, entry in enumerate(entries)]
    if not listed:
        raise ValueError("expected hypervisors, the list is empty; who may not see them is answered with none")
    (name, times), *_ = Counter(each.node_id for each in listed).most_common(1)
    if times > 1:
        raise ValueError(f"hypervisor {name} is listed {times} times; a node has one name and is there once")
    return listed


class Listing:
    """Says what a list says of its nodes, and says it again every `interval_ms`: of whom nobody speaks any more, that is silent.

    Each time in full, as an unchanged audit stands for a complete one, and these are not.
    """

    def __init__(self, hosts: Sequence[ListedHost], *, producer: str, epochs: Mapping[str, int], interval_ms: int) -> None:
        """`epochs` has one for each node."""
        self._hosts, self._producer, self._epochs, self._interval_ms = hosts, producer, epochs, interval_ms
        self._counter = 0
        self._due_ms: int | None = None

    def is_due(self, ran_ms: int) -> bool:
        """Whether it is time, by a clock that only runs; the first time is now."""
        return bool(self._hosts) and (self._due_ms is None or ran_ms >= self._due_ms)

    def is_overtaken(self, epochs: Mapping[str, int]) -> bool:
        """Whether any of its nodes was spoken of in a later epoch; `epochs` are the last ones."""
        return any(epochs.get(node_id, 0) > epoch for node_id, epoch in self._epochs.items())

    def audits(self, taken_at_ms: int, ran_ms: int, elsewhere: AbstractSet[str] = frozenset()) -> list[HypervisorAudited]:
        """An audit of each node that is up, but those `elsewhere`: another producer looks at them, and only that one knows when they go."""
        self._counter += 1
        self._due_ms = ran_ms + self._interval_ms
        return [self._audit(each, taken_at_ms, ran_ms) for each in self._hosts if each.node_id not in elsewhere and not each.is_down]

    def _audit(self, listed: ListedHost, taken_at_ms: int, ran_ms: int) -> HypervisorAudited:
        return HypervisorAudited(
            node_id=listed.node_id,
            producer=self._producer,
            epoch=self._epochs[listed.node_id],
            counter=self._counter,
            taken_at_ms=taken_at_ms,
            mono_ms=ran_ms,
            digest=audit_digest(listed.hypervisor, ()),
            complete=False,
            hypervisor=listed.hypervisor,
            instances=(),
        )


def _listed(number: int, entry: object) -> ListedHost:
    place = f"hypervisors[{number}]"
    if isinstance(entry, dict) and CLIENT_HOSTNAME in entry:
        raise ValueError(f"{place}: {OF_THE_CLIENT}")
    try:
        said = msgspec.convert(entry, _Listed)
        cpu = msgspec.json.decode(said.cpu_info) if isinstance(said.cpu_info, str) and said.cpu_info else said.cpu_info or {}
        architecture = cpu.get("arch", "") if isinstance(cpu, dict) else ""
        info = _cpu_info(cpu) if isinstance(cpu, dict) else CpuInfo()
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"{place}: {error}") from None
    except TypeError as error:  # a number where features are, or a list where counts are
        raise ValueError(f"{place}: cpu_info is none of Nova's: {error}") from None
    if said.vcpus is None or said.memory_mb is None or said.local_gb is None:
        raise ValueError(f"{place}, {said.hypervisor_hostname}: {TOTALS_MISSING}")
    # Nova calls libvirt's driver QEMU, with and without KVM. Guests of other architectures, which QEMU emulates, are not in this list.
    kinds = ("kvm", "qemu") if said.hypervisor_type.lower() in {"qemu", "kvm"} else (said.hypervisor_type.lower(),)
    host = said.service.host if said.service is not None else ""
    hypervisor = Hypervisor(
        vcpus=said.vcpus,
        memory_mib=said.memory_mb,
        disk_mib=said.local_gb * GIB,
        host_ip=said.host_ip or "",
        hypervisor_type=said.hypervisor_type,
        hypervisor_version=said.hypervisor_version,
        cpu_info=info,
        supported_guests=tuple(
            SupportedGuest(architecture=architecture, hypervisor_type=kind, vm_mode="hvm") for kind in kinds if architecture and kind
        ),
        service_host=host if host != said.hypervisor_hostname else "",
    )
    is_disabled, why = said.status == "disabled", (said.service.disabled_reason if said.service is not None else "") or ""
    return ListedHost(
        host or said.hypervisor_hostname,
        said.hypervisor_hostname,
        hypervisor,
        is_down=said.state == "down",
        is_disabled=is_disabled,
        is_enabled=(said.state, said.status) == ("up", "enabled"),
        reason=(why or "its compute service is disabled") if is_disabled else "",
    )


def _cpu_info(cpu: Mapping[str, Any]) -> CpuInfo:
    topology = cpu.get("topology") or {}
    fields = {"architecture": cpu.get("arch", ""), "model": cpu.get("model") or "", "vendor": cpu.get("vendor") or ""}
    counts = {name: topology[name] for name in ("cells", "sockets", "cores", "threads") if name in topology}
    return msgspec.convert(fields | counts | {"features": sorted(cpu.get("features") or ())}, CpuInfo)
