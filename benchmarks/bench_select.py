"""How many placement decisions a second does one core make, evidence included, and how does that grow with the fleet?

Subjects: `engine` (profiles), `reference` (the plain scan) and `nova`: Nova's own FilterScheduler code, filter and weigh, its default
filters and weighers, on host states that are kept between requests (its better case; a service builds them anew for each request). All get
the same fleet and flavors, 10 % of requests in anti-affinity groups of up to ten, and every choice is taken into account before the next
request: ours is folded into the ledger (the fold's own time is left out, the rooms that change are not), Nova's consumed from the host.

Nova runs in an environment of its own: `python3.11 -m venv DIR && DIR/bin/pip install nova==34.0.0`, then `--nova DIR/bin/python`.
Figures of one decision are measured around the whole of it: the ask with its seed, rooms, choice, evidence.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from msgspec.structs import replace

from benchmarks.report import Report, arguments, duration_seconds, percentiles, positives
from projections.ledger import Ledger
from schemas.audits import InstanceReport
from schemas.claims import ClaimRequested, NodeObserved
from schemas.codec import encode
from schemas.inventory import Hypervisor, NumaCell, PciDevice, SupportedGuest
from schemas.partitioner import partition_of
from schemas.requests import Flavor, Image, PlacementRequested, ServerGroup
from schemas.resources import ObservedResources
from schemas.results import Decision
from streams import collector
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import POLICIES, Policy, digest
from streams.scheduling.profiles.engine import ProfileEngine
from streams.scheduling.select import engine

FLAVORS = (
    (1, 512, 1), (1, 1024, 10), (1, 2048, 20), (2, 2048, 20), (2, 4096, 40), (2, 8192, 40), (4, 4096, 40), (4, 8192, 80),
    (4, 16384, 80), (8, 8192, 80), (8, 16384, 160), (8, 32768, 160), (16, 16384, 160), (16, 32768, 320), (16, 65536, 320), (32, 65536, 640),
)  # fmt: skip
"""vCPUs, MiB, GiB: those of the measurement of Nova in facts, so that figures can be compared."""
VCPUS, MEMORY_MIB, DISK_GIB = 256, 262_144 - 512, 4096
"""Of a node; 64 CPUs at a ratio of 4, which Nova gets as such."""
PARTITIONS = 8
GROUP_MEMBERS = 10
START_MS = 1_700_000_000_000
WARM_UP = 50
PERCENTILES = {"p50": 0.5, "p99": 0.99, "worst": 1.0}
ALIAS = '{"name": "nic", "vendor_id": "8086", "product_id": "154d"}'


class Kind(NamedTuple):
    """What a fleet and its requests are like: nodes of `kinds` sorts or each filled at random, so many classes."""

    nodes: int
    classes: int = len(FLAVORS)
    kinds: int = 0
    numa: bool = False


def main() -> None:
    asked = arguments(__doc__ or "", add)
    with Report("select", as_json=asked.json) as report:
        for size in asked.nodes:
            if asked.nova:
                nova(report, asked.nova, size, asked.seconds, asked.clock)
            for subject in ("reference", "engine"):
                alone(report, subject, "nova", Kind(size), asked)
            for policy in asked.policies:
                alone(report, "engine", policy, Kind(size), asked)
        for size in asked.alike:
            for policy in ("nova", *asked.policies):
                alone(report, "engine", policy, Kind(size, kinds=30), asked)
        for classes in asked.classes:
            for policy in ("nova", *asked.policies):
                alone(report, "engine", policy, Kind(1_000, classes=classes), asked)
        if asked.numa:
            alone(report, "engine", "nova", Kind(asked.numa, numa=True), asked)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=positives, default="100,1000,5000,10000", help="fleets whose nodes are filled each by chance")
    parser.add_argument("--alike", type=positives, default="1000,10000,100000", help="fleets of 30 kinds of nodes")
    parser.add_argument("--classes", type=positives, default="1000,1700", help="distinct classes of requests, on 1,000 nodes")
    parser.add_argument("--numa", type=int, default=1000, help="nodes of the fleet with NUMA and PCI requests; 0: none")
    parser.add_argument("--policies", type=policies, default="absolute-pack", help="absolute policies, for all sizes")
    parser.add_argument("--seconds", type=duration_seconds, default=3.0, help="how long one figure is measured at most")
    parser.add_argument("--decisions", type=decisions, default=20_000, help="how many decisions one figure is measured over at most")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: the thread's own time, where others share the cores")
    parser.add_argument("--nova", default="", help="the Python of an environment that has Nova 34; left out, Nova is not measured")


def policies(text: str) -> list[str]:
    """Names of policies, none for an empty text."""
    names = [name for name in text.split(",") if name]
    if unknown := sorted({*names} - POLICIES.keys()):
        raise argparse.ArgumentTypeError(f"not known: {', '.join(unknown)}; known: {', '.join(POLICIES)}")
    return names


def decisions(text: str) -> int:
    """A number of decisions of which some are left when the engine is warm."""
    if int(text) <= WARM_UP:
        raise argparse.ArgumentTypeError(f"more than {WARM_UP} are needed: so many warm up")
    return int(text)


def alone(report: Report, subject: str, policy_name: str, kind: Kind, asked: argparse.Namespace) -> None:
    """One figure, measured in a process of its own: what the one before left of the heap would cost this one a twentieth."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        rate, said = process.submit(measure, subject, policy_name, kind, asked).result()
    report.add(subject, rate, "decisions/s", **said)


def measure(subject: str, policy_name: str, kind: Kind, asked: argparse.Namespace) -> tuple[float, dict[str, Any]]:
    """A fleet, and decisions one after the other on it: how many a second, and what else is to be said of them."""
    policy, choose = POLICIES[policy_name], engine("profiles" if subject == "engine" else subject)
    if kind.numa:
        policy = _with_alias(policy)
    ledgers, policy_digest = make_fleet(kind), digest(policy)
    fleet = Fleet(ledgers)
    fleet.rooms()
    times: list[float] = []
    placed = failed = others = 0
    collector.settle()  # As `claimlog run` does.
    clock = time.thread_time if asked.clock == "cpu" else time.perf_counter
    ends = float("inf")
    for number, request in enumerate(requests(kind)):
        started = clock()
        ask = fleet.ask(request, 0, owner="bench", options=policy.options)
        decision = choose(fleet, ask, policy, policy_digest)
        ended = clock()
        warm = WARM_UP if subject == "engine" else 1
        if number == warm:
            ends = time.perf_counter() + asked.seconds
        if number >= warm:
            times.append(ended - started)
        others += decision.engine != ("profiles" if subject == "engine" else subject)
        if decision.chosen:
            placed += 1
            claim(ledgers, fleet, request, ask.item, decision)
        else:
            failed += 1
        if (time.perf_counter() > ends and times) or number >= asked.decisions:
            break
    follower = fleet.followers.get(policy_digest)
    said: dict[str, Any] = {"nodes": kind.nodes, "policy": policy_name, "classes": kind.classes}
    said |= {"kinds": kind.kinds} if kind.kinds else {}
    said |= {"numa": True} if kind.numa else {}
    if isinstance(follower, ProfileEngine):
        said["profiles"] = follower.view.profiles.live
    said |= {"clock": asked.clock} if asked.clock != "wall" else {}
    said |= {"decisions": len(times), "failed": failed}
    said |= {"by the reference": others} if others else {}
    tail = percentiles(times, PERCENTILES)
    said |= {f"{name}_us": round(value * 1e6) for name, value in tail.items()}
    return len(times) / sum(times), said


def _with_alias(policy: Policy) -> Policy:
    return replace(policy, options=replace(policy.options, pci_alias=(ALIAS,)))


def make_fleet(kind: Kind) -> list[Ledger]:
    """Ledgers with an audit of each node; what runs there is drawn for each node, or for each kind of nodes."""
    ledgers = [Ledger(partition, PARTITIONS) for partition in range(PARTITIONS)]
    for number in range(kind.nodes):
        rng = Random(f"{number % kind.kinds if kind.kinds else number}")
        name = f"node{number:06}"
        there = [rng.choice(FLAVORS[:12]) for _ in range(0 if kind.numa else rng.randint(0, 12))]
        reports = tuple(_report(f"{name}-{index:02}", *flavor) for index, flavor in enumerate(there))
        record = NodeObserved(
            node_id=name, producer="p", epoch=1, counter=1, taken_at_ms=START_MS, mono_ms=1, hypervisor=host(kind), instances=reports
        )
        key = name.encode()
        ledger = ledgers[partition_of(key, PARTITIONS)]
        ledger.apply(ledger.next_offset, START_MS, key, encode(record))
    return ledgers


def _report(instance_id: str, vcpus: int, memory_mib: int, gib: int) -> InstanceReport:
    return InstanceReport(
        instance_id=instance_id, resources=ObservedResources(vcpus=vcpus, pcpus=0, memory_mib=memory_mib, disk_mib=gib * 1024)
    )


def host(kind: Kind) -> Hypervisor:
    """One of Nova's compute nodes; with cells, half of its CPUs are for guests alone."""
    common: dict[str, Any] = {
        "memory_mib": MEMORY_MIB,
        "disk_mib": DISK_GIB * 1024,
        "hypervisor_type": "QEMU",
        "hypervisor_version": 8_002_000,
        "supported_guests": (SupportedGuest(architecture="x86_64", hypervisor_type="kvm", vm_mode="hvm"),),
    }
    if not kind.numa:
        return Hypervisor(vcpus=VCPUS, pcpus=0, **common)
    cells = tuple(
        NumaCell(
            cell_id=cell,
            cpus=tuple(range(32 * cell, 32 * cell + 32)),
            dedicated_cpus=tuple(range(32 * cell + 16, 32 * cell + 32)),
            siblings=tuple((cpu, cpu + 1) for cpu in range(32 * cell, 32 * cell + 32, 2)),
            memory_mib=MEMORY_MIB // 2,
            socket=cell,
        )
        for cell in range(2)
    )
    devices = tuple(
        PciDevice(address=f"0000:{cell}0:0{function}.0", vendor_id="8086", product_id="154d", numa_cell=cell)
        for cell in range(2)
        for function in range(4)
    )
    return Hypervisor(vcpus=32, pcpus=32, numa_cells=cells, pci_devices=devices, **common)


def requests(kind: Kind) -> Iterator[PlacementRequested]:
    """Requests without end; one in ten is in an anti-affinity group, which is full after some."""
    rng, number = Random(1), 0
    image = Image(image_id="image", properties={"hw_architecture": "x86_64"})
    while True:
        number += 1
        group = ServerGroup(group_id=f"group-{number // (10 * GROUP_MEMBERS)}", policy="anti-affinity") if rng.random() < 0.1 else None
        if kind.numa:
            yield PlacementRequested(request_id=f"r{number}", flavor=_topology_flavor(rng), image=image, group=group)
            continue
        vcpus, memory_mib, gib = FLAVORS[(drawn := rng.randrange(kind.classes)) % len(FLAVORS)]
        flavor = Flavor(name=f"f{drawn}", vcpus=vcpus, memory_mib=memory_mib + drawn // len(FLAVORS), root_gib=gib)
        yield PlacementRequested(request_id=f"r{number}", flavor=flavor, image=image, project_id="p", group=group)


def _topology_flavor(rng: Random) -> Flavor:
    vcpus = rng.choice((1, 2, 4))
    specs = rng.choice(
        (
            {"hw:cpu_policy": "dedicated"},
            {"hw:cpu_policy": "dedicated", "pci_passthrough:alias": "nic:1"},
            {"hw:numa_nodes": "1"},
            {"pci_passthrough:alias": "nic:1"},
        )
    )
    return Flavor(name="numa", vcpus=vcpus, memory_mib=2048 * vcpus, root_gib=10, extra_specs=specs)


def claim(ledgers: Sequence[Ledger], fleet: Fleet, request: PlacementRequested, item: Any, decision: Decision) -> None:
    """The choice as a claim that is folded; whoever was changed is touched."""
    partition = fleet.partition_of_node(decision.chosen)
    ledger, claim_id = ledgers[partition], f"{request.request_id}/0/s-1.1"
    item = replace(item, claim_id=claim_id, nodes=(decision.chosen,))
    record = ClaimRequested(request_id=request.request_id, owner="bench", basis=ledger.next_offset - 1, ttl_ms=600_000, items=(item,))
    step = ledger.apply(ledger.next_offset, START_MS, decision.chosen.encode(), encode(record))
    assert step is not None
    assert step.dead is None, step.dead
    assert all(outcome.outcome == "granted" for outcome in step.outcomes), step.outcomes
    fleet.touch(partition, step.node_ids)


def nova(report: Report, python: str, nodes: int, seconds: float, clock: str) -> None:
    """Nova's own code in its own environment."""
    script = Path(__file__).with_name("nova_select.py")
    command = [python, str(script), "--nodes", str(nodes), "--seconds", str(seconds), "--clock", clock]
    ran = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    found = json.loads(ran.stdout.splitlines()[-1])
    found |= {"clock": clock} if clock != "wall" else {}
    report.add("nova", found.pop("decisions_per_s"), "decisions/s", nodes=nodes, policy="nova", classes=len(FLAVORS), **found)


if __name__ == "__main__":
    main()
