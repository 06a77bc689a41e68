"""Nova's own filter-and-weigh code on the fleet of `bench_select`: run by it in an environment that has Nova 34, never imported.

The real HostManager with its default filters and weighers, and HostState.consume_from_request. Stubbed are the reads of a database that is
not there: compute nodes, services, aggregates, instance lists. Host states are kept between requests. Placement's part, which nodes have
room, is a list comprehension. Prints one JSON object.
"""

# mypy: disable-error-code="import-not-found, no-any-return"
# Nova is in an environment of its own, and brings no types.

from __future__ import annotations

import argparse
import datetime as dt
import json
import logging
import os
import random
import time
import uuid
from collections.abc import Callable
from typing import Any
from unittest import mock

os.environ.setdefault("OS_NOVA_DISABLE_EVENTLET_PATCHING", "true")

from nova import conf as nova_conf
from nova import context as nova_context
from nova import objects
from nova.scheduler import host_manager

FLAVORS = (
    (1, 512, 1), (1, 1024, 10), (1, 2048, 20), (2, 2048, 20), (2, 4096, 40), (2, 8192, 40), (4, 4096, 40), (4, 8192, 80),
    (4, 16384, 80), (8, 8192, 80), (8, 16384, 160), (8, 32768, 160), (16, 16384, 160), (16, 32768, 320), (16, 65536, 320), (32, 65536, 640),
)  # fmt: skip
CELL = str(uuid.UUID(int=7))
GROUP_MEMBERS = 10
REQUESTS_MAX = 5000


def computes(count: int) -> tuple[list[Any], dict[str, Any]]:
    """Compute nodes of 64 CPUs at a ratio of 4, 256 GiB and 4 TiB, filled as the benchmark fills its own."""
    now = dt.datetime.now(dt.UTC)
    kinds = [objects.HVSpec(arch="x86_64", hv_type="kvm", vm_mode="hvm")]
    nodes, services = [], {}
    for number in range(count):
        rng, name = random.Random(f"{number}"), f"node{number:06}"
        used = [rng.choice(FLAVORS[:12]) for _ in range(rng.randint(0, 12))]
        vcpus, memory_mb, disk_gb = (sum(each[at] for each in used) for at in range(3))
        nodes.append(
            objects.ComputeNode(
                id=number + 1, uuid=str(uuid.UUID(int=1000 + number)), host=name, service_id=number + 1, hypervisor_hostname=name,
                host_ip="192.0.2.1", hypervisor_type="QEMU", hypervisor_version=8002000, vcpus=64, memory_mb=262144, local_gb=4096,
                vcpus_used=vcpus, memory_mb_used=512 + memory_mb, local_gb_used=disk_gb, free_ram_mb=262144 - 512 - memory_mb,
                free_disk_gb=4096 - disk_gb, disk_available_least=4096 - disk_gb, current_workload=0, running_vms=len(used),
                cpu_info='{"arch": "x86_64"}', supported_hv_specs=kinds, pci_device_pools=objects.PciDevicePoolList(objects=[]),
                numa_topology=None, metrics="[]", stats={"num_instances": str(len(used)), "io_workload": "0", "failed_builds": "0"},
                cpu_allocation_ratio=4.0, ram_allocation_ratio=1.0, disk_allocation_ratio=1.0, created_at=now, updated_at=now,
                deleted=False, deleted_at=None, mapped=1,
            )
        )  # fmt: skip
        services[name] = objects.Service(
            id=number + 1, uuid=str(uuid.UUID(int=10**9 + number)), host=name, binary="nova-compute", topic="compute", report_count=1,
            disabled=False, disabled_reason=None, forced_down=False, last_seen_up=now, created_at=now, updated_at=now, deleted=False,
            deleted_at=None,
        )  # fmt: skip
    return nodes, services


def requests() -> list[Any]:
    """Request specifications; one in ten is in an anti-affinity group, which is full after some."""
    rng, found = random.Random(1), []
    flavors = [
        objects.Flavor(
            id=number, name=f"f{number}", flavorid=str(number), vcpus=vcpus, memory_mb=memory_mb, root_gb=gib, ephemeral_gb=0, swap=0,
            rxtx_factor=1.0, extra_specs={}, disabled=False, is_public=True, vcpu_weight=0,
        )
        for number, (vcpus, memory_mb, gib) in enumerate(FLAVORS)
    ]  # fmt: skip
    image = objects.ImageMeta(id=str(uuid.UUID(int=3)), properties=objects.ImageMetaProps(hw_architecture="x86_64"))
    group = None
    for number in range(REQUESTS_MAX):
        if number % (10 * GROUP_MEMBERS) == 0:
            group = objects.InstanceGroup(
                uuid=str(uuid.UUID(int=5 * 10**9 + number)), policy="anti-affinity", policies=["anti-affinity"], members=[], hosts=[],
                rules={},
            )  # fmt: skip
        instance_id = str(uuid.UUID(int=9 * 10**9 + number))
        own = group if rng.random() < 0.1 else None
        if own is not None:
            own.members.append(instance_id)
        spec = objects.RequestSpec(
            instance_uuid=instance_id, flavor=rng.choice(flavors), num_instances=1, project_id="p", user_id="u", availability_zone=None,
            image=image, numa_topology=None, pci_requests=None, instance_group=own, limits=objects.SchedulerLimits(), retry=None,
            scheduler_hints={}, ignore_hosts=None, force_hosts=None, force_nodes=None, requested_destination=None, is_bfv=False,
            requested_resources=[], request_level_params=objects.RequestLevelParams(),
        )  # fmt: skip
        found.append((spec, instance_id))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, required=True)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    asked = parser.parse_args()
    logging.getLogger().addHandler(logging.NullHandler())
    objects.register_all()
    nova_conf.CONF([], project="nova", default_config_files=[], default_config_dirs=[])
    cell = objects.CellMapping(uuid=CELL, name="cell1", disabled=False, transport_url="none://", database_connection="x")
    nodes, services = computes(asked.nodes)
    manager = host_manager.HostManager

    def no_instances(self: Any, computes_by_cell: object = None) -> None:
        del computes_by_cell
        self._instance_info = {name: {"instances": {}, "updated": True} for name in services}

    with (
        mock.patch.object(objects.CellMappingList, "get_all", return_value=objects.CellMappingList(objects=[cell])),
        mock.patch.object(manager, "_init_aggregates"),
        mock.patch.object(manager, "_init_instance_info", no_instances),
    ):
        hosts = manager()
        # Its public ways to host states begin at a database.
        states = list(hosts._get_host_states(nova_context.get_admin_context(), {CELL: nodes}, services))  # noqa: SLF001
        print(json.dumps(measured(hosts, states, asked.seconds, time.thread_time if asked.clock == "cpu" else time.perf_counter)))


def measured(hosts: Any, states: list[Any], seconds: float, clock: Callable[[], float]) -> dict[str, Any]:
    """Decisions one after the other, each taken into account before the next."""
    times, failed, ends = [], 0, time.perf_counter() + seconds
    for spec, instance_id in requests():
        started = clock()
        memory_mb, disk_mb = spec.memory_mb, spec.root_gb * 1024
        with_room = [
            each
            for each in states
            if each.free_ram_mb >= memory_mb
            and each.free_disk_mb >= disk_mb
            and each.vcpus_total * each.cpu_allocation_ratio - each.vcpus_used >= spec.vcpus
        ]
        passed = hosts.get_filtered_hosts(with_room, spec)
        if passed:
            best = hosts.get_weighed_hosts(passed, spec)[0].obj
            best.consume_from_request(spec)
            best.instances[instance_id] = None
        else:
            failed += 1
        times.append(clock() - started)
        if time.perf_counter() > ends and len(times) > 2:
            break
    ordered = sorted(times)
    return {
        "decisions_per_s": len(times) / sum(times),
        "decisions": len(times),
        "failed": failed,
        "p50_us": round(ordered[len(ordered) // 2] * 1e6),
        "p99_us": round(ordered[min(int(0.99 * len(ordered)), len(ordered) - 1)] * 1e6),
        "worst_us": round(ordered[-1] * 1e6),
    }


if __name__ == "__main__":
    main()
