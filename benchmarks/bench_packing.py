"""How well does each policy pack? VMs refused, free room that the next VM cannot use, and empty hosts, at 85-90 % load on the Azure trace.

The trace's VMs arrive and end in its order, on hosts of three kinds. The trace asks for more than the hosts have, so it is thinned: a VM is
left out for all subjects alike if those before it that still live, had they all been accepted, leave less than 10 % of a resource beside
it. What is offered so stays at 85-90 % of the scarcer resource once the fleet is full, and what is refused is refused for how the others
lie. All subjects get the same VMs and are looked at in the same moments. Claims and releases go through the ledger's fold.

*Stranded* is the part of a resource that is free on hosts where the next VM does not fit: the mean over the trace's flavors, each as
often as it is asked for. Beside the policies: `first-fit in order` takes the first host by name that fits, `first-fit from anywhere` is
the engine of that name, `random` takes any that fits. The trace is read from the folder that `CLAIMLOG_DATA` names.

Run `python -m benchmarks.bench_packing [--json] [--vms N] [--seed N] [--only SUBJECT …]`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from benchmarks.report import Report, arguments, positive
from producers.traces import TRACE_FILE, trace
from producers.workload import Arrival, Departure
from projections.ledger import Ledger
from projections.room import Room, quick_fit
from schemas.claims import ClaimReleased, ClaimRequested, NodeObserved
from schemas.codec import encode
from schemas.inventory import Hypervisor
from schemas.requests import Flavor, PlacementRequested
from streams.scheduling.ask import Ask
from streams.scheduling.fleet import Fleet
from streams.scheduling.policy import DEFAULT, POLICIES, Policy, digest
from streams.scheduling.select import engine

KINDS = ((32, 64), (48, 96), (64, 112))
"""vCPUs and memory in GiB. The trace asks for 1.8 GiB a vCPU: hosts on both sides of that, so that either resource can run out first."""
LEAST, MOST = 0.85, 0.90
"""Of the scarcer resource, what is offered."""
LOOK_EVERY = 50
"""Arrivals between two looks."""
START_MS = 1_700_000_000_000

Choose = Callable[[Fleet, Ask], str]
"""The chosen node, or nothing."""


class Looked(NamedTuple):
    """The means over all looks, as parts of the fleet; hosts as a number."""

    load: float
    stranded_vcpus: float
    stranded_memory: float
    empty_hosts: float


def main() -> None:
    asked = arguments(__doc__ or "", add)
    events, looks, first = thinned(_events(asked.vms, asked.seed), asked.nodes)
    counted = sum(isinstance(event, Arrival) for event in events[first:])
    with Report("packing", as_json=asked.json) as report:
        for name, choose in subjects(asked.seed).items():
            if asked.only and name not in asked.only:
                continue
            if sys.stderr.isatty():
                print(f"... {name}", file=sys.stderr)
            refused, vcpus, looked = play(events, asked.nodes, looks, first, choose)
            said = {"nodes": asked.nodes, "VMs": counted, "looks": len(looks)}
            report.add(name, counted - refused, "VMs accepted", **said)
            report.add(name, refused, "VMs refused", **said)
            report.add(name, vcpus, "vCPUs refused", **said)
            report.add(name, 100 * looked.stranded_vcpus, "% of vCPUs stranded", **said)
            report.add(name, 100 * looked.stranded_memory, "% of memory stranded", **said)
            report.add(name, looked.empty_hosts, "empty hosts", **said)
            report.add(name, 100 * looked.load, "% in use of the scarcer resource", **said)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=positive, default=100)
    parser.add_argument("--vms", type=positive, default=30_000, help="of the trace, before it is thinned")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=())


def subjects(seed: int) -> dict[str, Choose]:
    """Every policy by its name, through the profile engine, and the simple rules beside them."""
    rng = Random(seed)
    chosen: dict[str, Choose] = {"first-fit in order": first_fit, "random": lambda fleet, ask: any_fit(fleet, ask, rng)}
    chosen["first-fit from anywhere"] = by_policy(DEFAULT, "first-fit")
    return chosen | {f"policy {name}": by_policy(policy, "profiles") for name, policy in POLICIES.items()}


def by_policy(policy: Policy, name: str) -> Choose:
    select, text = engine(name), digest(policy)
    return lambda fleet, ask: select(fleet, ask, policy, text).chosen


def first_fit(fleet: Fleet, ask: Ask) -> str:
    takes = quick_fit(ask.item)
    return next((room.node_id for room in fleet.rooms() if takes(room)), "")


def any_fit(fleet: Fleet, ask: Ask, rng: Random) -> str:
    takes = quick_fit(ask.item)
    rooms: list[Room] = [room for room in fleet.rooms() if takes(room)]
    return rng.choice(rooms).node_id if rooms else ""


def thinned(events: Iterable[Arrival | Departure], nodes: int) -> tuple[list[Arrival | Departure], frozenset[int], int]:
    """The events that are offered, the numbers of those after which is looked, and the number of the first that counts."""
    has = np.sum([(vcpus, memory_gib * 1024) for vcpus, memory_gib in (KINDS[number % len(KINDS)] for number in range(nodes))], axis=0)
    sizes: dict[str, Flavor] = {}
    offered: list[Arrival | Departure] = []
    looks: list[int] = []
    now = np.zeros(2)
    first = -1
    for event in events:
        if isinstance(event, Departure):
            if (gone := sizes.pop(event.request_id, None)) is not None:
                now -= (gone.vcpus, gone.memory_mib)
                offered.append(event)
            continue
        flavor = event.request.flavor
        after = now + np.array((flavor.vcpus, flavor.memory_mib))
        if (after / has).max() > MOST:
            continue
        now, sizes[event.request.request_id] = after, flavor
        offered.append(event)
        if (now / has).max() >= LEAST:
            first = len(offered) - 1 if first < 0 else first
            looks.append(len(offered) - 1)
    if first < 0:
        sys.exit(f"the trace never fills {LEAST:.0%} of {nodes} hosts; play more VMs or fewer hosts")
    return offered, frozenset(looks[::LOOK_EVERY]), first


def play(events: Sequence[Arrival | Departure], nodes: int, looks: frozenset[int], first: int, choose: Choose) -> tuple[int, int, Looked]:
    """VMs and vCPUs refused from the first that counts on, and what the looks saw."""
    ledger = Ledger(0, 1)
    fleet = Fleet([ledger])
    for number in range(nodes):
        say(ledger, fleet, f"hv-{number:04}", audit(number))
    popular = Counter(event.request.flavor.vcpus << 32 | event.request.flavor.memory_mib for event in events if isinstance(event, Arrival))
    flavors = [(size >> 32, size & 0xFFFFFFFF, count / popular.total()) for size, count in popular.items()]
    placed: dict[str, str] = {}
    refused = vcpus = 0
    seen: list[Looked] = []
    for at, event in enumerate(events):
        if isinstance(event, Departure):
            if node_id := placed.pop(event.request_id, ""):
                claim_id = f"{event.request_id}/0/s-1.1"
                release = ClaimReleased(record_id=f"{claim_id}/end", claim_id=claim_id, node_id=node_id, reason="deleted")
                say(ledger, fleet, node_id, release)
            continue
        if node_id := claim(ledger, fleet, event.request, choose):
            placed[event.request.request_id] = node_id
        elif at >= first:
            refused, vcpus = refused + 1, vcpus + event.request.flavor.vcpus
        if at in looks:
            seen.append(look(fleet, flavors))
    return refused, vcpus, Looked(*np.mean(seen, axis=0))


def claim(ledger: Ledger, fleet: Fleet, request: PlacementRequested, choose: Choose) -> str:
    """The node that the ledger granted; none if none was chosen."""
    ask = fleet.ask(request, 0, owner="s")
    node_id = choose(fleet, ask)
    if node_id:
        item = replace(ask.item, claim_id=f"{request.request_id}/0/s-1.1", nodes=(node_id,))
        record = ClaimRequested(request_id=request.request_id, owner="s", basis=ledger.next_offset - 1, ttl_ms=600_000, items=(item,))
        outcomes = say(ledger, fleet, node_id, record)
        assert outcomes == ["granted"], (outcomes, request)
    return node_id


def look(fleet: Fleet, flavors: Sequence[tuple[int, int, float]]) -> Looked:
    rooms = fleet.rooms()
    figures = [(r.vcpus_free, r.memory_mib_free, r.vcpus_total, r.memory_mib_total) for r in rooms]
    free_vcpus, free_mib, all_vcpus, all_mib = np.array(figures, dtype=np.float64).T
    stranded = np.zeros(2)
    for vcpus, memory_mib, share in flavors:
        out = (free_vcpus < vcpus) | (free_mib < memory_mib)
        stranded += share * np.array((free_vcpus[out].sum() / all_vcpus.sum(), free_mib[out].sum() / all_mib.sum()))
    used = max(1 - free_vcpus.sum() / all_vcpus.sum(), 1 - free_mib.sum() / all_mib.sum())
    return Looked(float(used), float(stranded[0]), float(stranded[1]), float((free_vcpus == all_vcpus).sum()))


def say(ledger: Ledger, fleet: Fleet, node_id: str, record: NodeObserved | ClaimRequested | ClaimReleased) -> list[str]:
    """One record through the fold; its outcomes."""
    step = ledger.apply(ledger.next_offset, START_MS + ledger.next_offset, node_id.encode(), encode(record))
    assert step is not None
    assert step.dead is None, step.dead
    fleet.touch(0, step.node_ids)
    return [str(outcome.outcome) for outcome in step.outcomes]


def audit(number: int) -> NodeObserved:
    vcpus, memory_gib = KINDS[number % len(KINDS)]
    has = Hypervisor(vcpus=vcpus, memory_mib=memory_gib * 1024, disk_mib=10_000_000)
    return NodeObserved(
        node_id=f"hv-{number:04}",
        producer="a",
        epoch=1,
        counter=1,
        taken_at_ms=START_MS,
        mono_ms=1,
        digest="d",
        hypervisor=has,
        instances=(),
    )


def _events(vms: int, seed: int) -> Iterable[Arrival | Departure]:
    data = Path(os.environ.get("CLAIMLOG_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if not (data / TRACE_FILE).exists():
        sys.exit(f"the Azure trace is not in {data}; name the folder that has {TRACE_FILE} with CLAIMLOG_DATA")
    return trace(data, seed=seed, instances=vms)


if __name__ == "__main__":
    main()
