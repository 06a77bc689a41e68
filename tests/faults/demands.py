"""What must hold at each grant of cells, CPUs, pages, devices and groups, and of each result's evidence: worked out from records alone.

Of the fold only the outcomes are used (what was granted where, what was closed) and what observations show; sums and unions are made anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise
from random import Random

from msgspec import Struct

from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.node import Node
from schemas.claims import ClaimItem, ClaimRequested, GroupHomeProposed, NodeConfigured, NodeObserved
from schemas.inventory import NumaCell
from schemas.results import ClaimOutcome, Decision, Granted, InstancesPlaced
from schemas.topics import CLAIMS
from streams.cli.reading.rerun import Reruns
from streams.log.base import Log
from streams.scheduling.explain import spelled_out
from tests.faults.checkers import CLOSING, counting, records, requests


class Held(Struct):
    """One open claim: what was asked, and what was granted."""

    item: ClaimItem
    granted: Granted
    confirmed: bool = False

    @property
    def cpus(self) -> set[int]:
        return {cpu for cell in self.granted.cells for cpu in cell.held_cpus}


Open = dict[str, Held]
"""By claim."""


def demands_wrong(log: Log) -> list[str]:
    """Every grant that gave what somebody else had, or not what was asked for, or broke a group; then what is wrong with the evidence."""
    wrong: list[str] = []
    homes: dict[tuple[str, int], str] = {}
    members: dict[tuple[str, int], set[str]] = defaultdict(set)
    known: list[dict[str, int]] = []
    for number in range(log.topics()[CLAIMS]):
        ledger, there = Ledger(number, log.topics()[CLAIMS]), defaultdict[str, Open](dict)
        first: dict[str, int] = {}
        for record in records(log, CLAIMS, number):
            step = ledger.apply(record.offset, record.time_ms, record.key, record.value)
            assert step is not None
            event = step.event
            if isinstance(event, NodeObserved | NodeConfigured):
                first.setdefault(event.node_id, record.offset)
            elif isinstance(event, GroupHomeProposed) and not step.ignored:
                homes[event.group_id, event.epoch] = event.node_id
            wrong += booked(ledger, step, there)
            for item, node_id in _granted(step):
                if item.group is not None and item.group.policy == "affinity" and not item.keep:
                    members[item.group.group_id, item.group.epoch].add(node_id)
        known.append(first)
    for key, nodes in members.items():
        if nodes != {homes.get(key)}:
            wrong.append(f"members of {key} were granted on {sorted(nodes)}, its home is {homes.get(key)}")
    return wrong + evidence_wrong(log, known)


def evidence_wrong(log: Log, known: list[dict[str, int]]) -> list[str]:
    """Counting results whose counts do not add up to all nodes known at their cut, or that place where nobody decided to."""
    found = []
    asked = requests(log)
    for request_id, result in counting(log)[0].items():
        decisions = {each.instance_id: each for each in result.decisions}
        for decision in result.decisions:
            nodes = sum(offset < end for first, end in zip(known, decision.cut, strict=True) for offset in first.values())
            found += [f"{request_id}: {text}" for text in counts_wrong(decision, nodes)]
        if not isinstance(result, InstancesPlaced):
            continue
        for place in result.placements:
            chosen = decisions.get(place.instance_id)
            if chosen is not None and place.node_id not in {chosen.chosen, *chosen.alternates}:
                found.append(f"{request_id} places {place.instance_id} on {place.node_id}, decided was {chosen.chosen}")
        if asked[request_id].dry_run and (result.placements or result.kept):
            found.append(f"{request_id} was a dry run and names claims")
    return found


def not_made_again(log: Log, decisions_max: int, draw: Random) -> list[str]:
    """Decisions of counting results that do not come out again as they were recorded: of so many, drawn."""
    asked = requests(log)
    pairs = [
        (asked[request_id], decision)
        for request_id, result in sorted(counting(log)[0].items())
        for decision in spelled_out(asked[request_id], result.decisions)
    ]
    found = []
    for request, decision in draw.sample(pairs, min(decisions_max, len(pairs))):
        again = Reruns(log, request).again(decision)
        if not again.same:
            found.append(f"{request.request_id}: {decision.instance_id}: {again.told}")
    return found


def counts_wrong(decision: Decision, nodes: int) -> Iterator[str]:
    """Whether one decision was made on so many nodes, and its counts add up to them and follow from each other."""
    if decision.nodes_known != nodes:
        yield f"{decision.instance_id} was decided on {decision.nodes_known} nodes, {nodes} were known"
    if decision.nodes_known != sum(each.rejected for each in decision.rejections) + decision.passed:
        yield f"the counts of {decision.instance_id} do not add up to {decision.nodes_known}"
    left = [each.entered - each.rejected for each in decision.rejections]
    entered = [each.entered for each in decision.rejections]
    if any(before != after for before, (_, after) in zip(left, pairwise(entered), strict=False)) or (left and left[-1] != decision.passed):
        yield f"the counts of {decision.instance_id} do not follow from each other"
    if bool(decision.chosen) != bool(decision.passed):
        yield f"{decision.instance_id}: {decision.passed} nodes passed, chosen is {decision.chosen!r}"


def _granted(step: Step) -> Iterator[tuple[ClaimItem, str]]:
    items = {item.claim_id: item for item in step.event.items} if isinstance(step.event, ClaimRequested) else {}
    for outcome in step.outcomes:
        if outcome.outcome == "granted":
            yield items[outcome.claim_id], outcome.node_id


def booked(ledger: Ledger, step: Step, there: dict[str, Open]) -> list[str]:
    """Book one step in what is open on each node; what is wrong with its grants."""
    items = {item.claim_id: item for item in step.event.items} if isinstance(step.event, ClaimRequested) else {}
    new: list[ClaimOutcome] = []
    for outcome in step.outcomes:
        if outcome.outcome == "granted":
            there[outcome.node_id][outcome.claim_id] = Held(items[outcome.claim_id], outcome.granted or Granted())
            new.append(outcome)
        elif outcome.outcome == "confirmed":
            _confirmed(there[outcome.node_id], there[outcome.node_id][outcome.claim_id])
        elif outcome.outcome in CLOSING:
            del there[outcome.node_id][outcome.claim_id]
    place = f"{CLAIMS}/{ledger.partition}@{step.offset}"
    return [
        f"{place}: {outcome.claim_id} on {outcome.node_id}: {text}"
        for outcome in new
        for text in _grant_wrong(ledger.nodes[outcome.node_id], there[outcome.node_id], there[outcome.node_id][outcome.claim_id])
    ]


def _confirmed(there: Open, held: Held) -> None:
    """A confirmed resize is all that its instance has there: claims that were confirmed before it hold what it holds."""
    held.confirmed = True
    for other in there.values() if held.item.resize else ():
        if other.item.instance_id == held.item.instance_id and other.confirmed:
            other.granted = held.granted


def _grant_wrong(node: Node, there: Open, held: Held) -> Iterator[str]:
    item, instance_id = held.item, held.item.instance_id
    assert node.hypervisor is not None
    cells = {cell.cell_id: cell for cell in node.hypervisor.numa_cells}
    others = [each for each in there.values() if each.item.instance_id != instance_id]
    shown = [each.report for name, each in node.shown.items() if name != instance_id]
    taken = {cpu for each in others for cpu in each.cpus} | {cpu for report in shown for cpu in report.pinned_cpus}
    if held.cpus & taken:
        yield f"the CPUs {sorted(held.cpus & taken)} are others'"
    addresses = {address for each in others for address in each.granted.pci_addresses} | {a for r in shown for a in r.pci_addresses}
    parent = {device.address: device.physical_function for device in node.hypervisor.pci_devices}
    for address in held.granted.pci_addresses:
        family = {address, parent[address], *(child for child, port in parent.items() if port == address)} - {""}
        if family & addresses:
            yield f"the device {address} is another's, itself or in part"
    if not item.keep:
        yield from _asked_wrong(cells, held)
    yield from _pages_wrong(node, cells, there, held)
    group = item.group
    if group is not None and group.policy == "anti-affinity" and not item.keep:
        groups = ((each.item.instance_id, each.item.group) for each in there.values())
        members = {name for name, other in groups if other is not None and other.group_id == group.group_id}
        if len(members) > group.max_per_node:
            yield f"{len(members)} of {group.group_id}, {group.max_per_node} allowed"


def _asked_wrong(cells: dict[int, NumaCell], held: Held) -> Iterator[str]:
    """Whether it got what was asked for: CPUs of the right cell, one for each, with their threads where it wants them alone; devices."""
    item, granted = held.item, held.granted
    if len(granted.cells) != len(item.numa) or len({cell.cell_id for cell in granted.cells}) != len(item.numa):
        yield f"{len(item.numa)} cells wanted, got {[cell.cell_id for cell in granted.cells]}"
        return
    if len(granted.pci_addresses) != sum(want.count for want in item.pci) or len(set(granted.pci_addresses)) != len(granted.pci_addresses):
        yield f"devices wanted {[(want.alias, want.count) for want in item.pci]}, got {granted.pci_addresses}"
    for want, got in zip(item.numa, granted.cells, strict=True):
        cell = cells[got.cell_id]
        wanted = {*want.cpus, *want.pinned_cpus} if want.cpu_policy == "dedicated" else set(want.pinned_cpus)
        if set(got.guest_cpus) != wanted or len(set(got.pinned_cpus)) != len(wanted):
            yield f"guest CPUs {sorted(wanted)} are pinned to {got.pinned_cpus}"
        if not {*got.pinned_cpus, *got.emulator_cpus, *got.held_cpus} <= set(cell.dedicated_cpus):
            yield f"{got.held_cpus} are not all dedicated CPUs of cell {got.cell_id}"
        if not {*got.pinned_cpus, *got.emulator_cpus} <= set(got.held_cpus):
            yield f"of {got.pinned_cpus} and {got.emulator_cpus} only {got.held_cpus} are held"
        cores = [set(core) for core in cell.siblings if set(core) & set(got.pinned_cpus)]
        if want.thread_policy == "isolate" and wanted and not set().union(*cores) <= set(got.held_cpus):
            yield f"threads beside {got.pinned_cpus} are not held, and it wants them alone"
        if want.memory_mib != got.memory_mib:
            yield f"{want.memory_mib} MiB wanted in cell {got.cell_id}, got {got.memory_mib}"


def _pages_wrong(node: Node, cells: dict[int, NumaCell], there: Open, held: Held) -> Iterator[str]:
    """Pages beyond what there are, if this claim takes more of them: what its instance had before may stay when more are reserved."""
    reserved = {pages.size_kib: pages.reserved or pages.total for pages in node.pages_reserved}
    for got in held.granted.cells:
        pages = next((each for each in cells[got.cell_id].pages if each.size_kib == got.page_size_kib), None)
        used, before = (
            sum(most * 1024 for most in _most(claims, got.cell_id, got.page_size_kib).values())
            for claims in (there.values(), [each for each in there.values() if each is not held])
        )
        if pages is None or used == before:
            continue
        limit = (pages.total - max(pages.reserved, reserved.get(pages.size_kib, 0))) * pages.size_kib
        if used > limit:
            yield f"{used} KiB of {pages.size_kib} KiB pages used in cell {got.cell_id}, there are {limit}"


def _most(claims: Iterable[Held], cell_id: int, size_kib: int) -> dict[str, int]:
    """Of each instance the largest of its claims in a cell: claims of one instance on one node overlap."""
    most: dict[str, int] = {}
    for each in claims:
        amount = sum(cell.memory_mib for cell in each.granted.cells if (cell.cell_id, cell.page_size_kib) == (cell_id, size_kib))
        most[each.item.instance_id] = max(most.get(each.item.instance_id, 0), amount)
    return most
