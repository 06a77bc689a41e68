"""A Hypothesis machine that writes any history of `claims` and holds the ledger to what must be true after every record.

Three folds go along: the one under test, one that takes none of its short cuts, and one restored from a snapshot before each record.
The rules of the machine are the ways in which records come about; `check` and the invariants are what they may not break.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from projections.changes import Changes, difference, figures, total
from projections.ledger import Ledger
from projections.ledger_state import Step
from projections.node import Claim, Node
from projections.observed import Observed
from projections.rows import node_resources
from projections.snapshots import encoded, restored
from schemas.audits import InstanceReport
from schemas.claims import (
    ClaimItem,
    ClaimRequested,
    GroupHomeClosed,
    GroupHomeProposed,
    GroupMember,
    InstanceObserved,
    NodeConfigured,
    NodeObserved,
)
from schemas.inventory import HugePages, Hypervisor, NumaCell, PciDevice, ResourceRule
from schemas.requests import NumaWant, PciWant
from schemas.resources import RESOURCES, Limits, ObservedResources, Resources
from schemas.results import ClaimOutcome, NodeResources
from tests.ledger_history import START_MS, History, Size, digest_of, fates, full_use, state

NODES = st.sampled_from(["n1", "n2"])
INSTANCES = st.sampled_from(["vm1", "vm2", "vm3", "vm4"])
CELLS = tuple(
    NumaCell(
        cell_id=n,
        cpus=tuple(range(4 * n, 4 * n + 4)),
        dedicated_cpus=(4 * n, 4 * n + 1),
        siblings=((4 * n, 4 * n + 1),),
        memory_mib=8,
        pages=(HugePages(size_kib=2048, total=2, free=2 - n),),
    )
    for n in (0, 1)
)
FUNCTION = PciDevice(address="d0", device_type="type-PF", vendor_id="v")
PARTS = tuple(PciDevice(address=f"d{n}", device_type="type-VF", vendor_id="v", physical_function="d0", numa_cell=1) for n in (1, 2))
DEVICES = (FUNCTION, *PARTS, PciDevice(address="d3", vendor_id="v", numa_cell=0))
ROOMY = Hypervisor(vcpus=6, memory_mib=12, disk_mib=9, numa_cells=CELLS, pci_devices=DEVICES)
WAITS_S = st.sampled_from([0, 0, 1, 4, 5, 6, 15, 20, 61])
LAGS_S = st.sampled_from([0, 0, 0, 1, 4, 5, 6, 30, -3])
SIZES = st.builds(
    ObservedResources, vcpus=st.none() | st.integers(0, 3), memory_mib=st.none() | st.integers(0, 6), disk_mib=st.none() | st.integers(0, 3)
) | st.integers(0, 6).map(lambda size: ObservedResources(memory_mib=size))
HELD = st.builds(
    InstanceReport,
    instance_id=st.just("of whom it is drawn for"),
    resources=SIZES,
    pinned_cpus=st.sampled_from([(), (0,), (0, 1), (4, 5)]),
    pci_addresses=st.sampled_from([(), ("d0",), ("d1",), ("d3",)]),
    numa_cells=st.sampled_from([(), (0,), (0, 1)]),
)
LISTS = st.dictionaries(INSTANCES, SIZES | SIZES | HELD, max_size=4).map(
    lambda listed: {vm: replace(size, instance_id=vm) if isinstance(size, InstanceReport) else size for vm, size in listed.items()}
)
HOSTS = st.just(ROOMY) | st.builds(
    Hypervisor,
    vcpus=st.none() | st.integers(2, 6),
    memory_mib=st.integers(4, 12),
    disk_mib=st.none() | st.just(9),
    io_workload=st.integers(0, 1),
    numa_cells=st.sampled_from([(), CELLS, CELLS[:1]]),
    pci_devices=st.sampled_from([(), DEVICES, DEVICES[:2]]),
)
NUMA = st.sampled_from(
    [
        (), (), (),
        (NumaWant(pinned_cpus=(0,), memory_mib=1, cpu_policy="dedicated"),),
        (NumaWant(pinned_cpus=(0, 1), memory_mib=2, cpu_policy="dedicated", thread_policy="require"),),
        (NumaWant(cpus=(0,), memory_mib=2, page_size="large"),),
        (NumaWant(cpus=(0,), pinned_cpus=(1,), memory_mib=1, cpu_policy="mixed", emulator_threads="isolate"),),
        (NumaWant(cpus=(0,), memory_mib=1), NumaWant(cell_id=1, cpus=(1,), memory_mib=4)),
    ]
)  # fmt: skip
PCI = st.sampled_from(
    [
        (), (), (),
        (PciWant(specs=({"vendor_id": "v"},), numa_policy="preferred"),),
        (PciWant(specs=({"dev_type": "type-VF"},), numa_policy="required"),),
        (PciWant(specs=({"dev_type": "type-PF"},), numa_policy="preferred"),),
    ]
)  # fmt: skip
GROUPS = st.sampled_from(
    [
        None, None,
        GroupMember(group_id="apart", policy="anti-affinity"),
        GroupMember(group_id="in twos", policy="anti-affinity", max_per_node=2),
        GroupMember(group_id="together", policy="affinity", epoch=1),
        GroupMember(group_id="together", policy="affinity", epoch=2),
    ]
)  # fmt: skip
LIMITS = st.builds(
    Limits,
    memory_mib=st.none() | st.integers(2, 9),
    instances_max=st.none() | st.integers(1, 3),
    io_ops_max=st.none() | st.integers(1, 3),
)
WANTS = st.tuples(
    INSTANCES,
    st.lists(NODES, min_size=1, max_size=3, unique=True).map(tuple),
    st.builds(Resources, vcpus=st.integers(0, 3), memory_mib=st.integers(0, 6), disk_mib=st.integers(0, 3)),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([False, False, False, True]),
    st.none() | LIMITS,
    GROUPS,
    NUMA,
    PCI,
)
RULES = st.builds(ResourceRule, reserved=st.integers(0, 2), ratio_milli=st.sampled_from([500, 1000, 1500, 4000, None]))
CHANGES = st.sampled_from(["arrived", "started", "stopped", "paused", "resized", "departed", "departed", "deleted"])
REASONS = st.sampled_from(["loser", "cancelled", "failed", "operator", "deleted", "migrated"])


class Before(NamedTuple):
    """A node before a record: its use, its groups' members, per instance the requests whose claims of it are not confirmed, and who has
    which CPU and device."""

    used: list[int]
    members: dict[str, set[str]]
    on_their_way: dict[str, set[str]]
    holders: dict[str, set[str]]


class LedgerMachine(RuleBasedStateMachine):
    """See the module. `kept_back` are records written but not yet appended: they come late."""

    def __init__(self) -> None:
        super().__init__()
        self.history = History()
        self.long_way = History(spelled=True)
        self.kept_back: list[tuple[bytes, bytes]] = []
        self.listed: dict[str, dict[str, Size]] = {}
        self.epochs: dict[str, int] = {}
        self.claim_ids: list[str] = []
        self.number = 0

    @initialize()
    def fleet(self) -> None:
        """Most histories begin with hosts that were audited."""
        for node in ("n1", "n2"):
            self.listed[node] = {}
            self._write(lambda h, node=node: h.audit(node=node, at_s=0, hypervisor=ROOMY))

    # How records come about

    @rule(wants=st.lists(WANTS, min_size=1, max_size=3), wait_s=WAITS_S, request=st.integers(1, 3), ttl_s=st.sampled_from([30, 60]))
    def request(self, wants: list[Any], wait_s: int, request: int, ttl_s: int) -> None:
        """A scheduler claims; with alternates, for several instances, resizing, forced, limited, in groups."""
        names = ("instance_id", "nodes", "resources", "resize", "forced", "limits", "group", "numa", "pci")
        items = tuple(ClaimItem(claim_id=self._claim_id(), **dict(zip(names, want, strict=True))) for want in wants)
        self._write(lambda h: h.claims(*items, at_s=self._later(wait_s), request_id=f"r{request}", ttl_s=ttl_s))

    @rule(vm=INSTANCES, node=NODES, size=st.integers(1, 4), wait_s=WAITS_S)
    def claim(self, vm: str, node: str, size: int, wait_s: int) -> None:
        """The common claim: small, on one node, so that many are granted."""
        claim_id = self._claim_id()
        self._write(lambda h: h.claim(claim_id, vm, size, nodes=(node,), at_s=self._later(wait_s)))

    @rule(vm=INSTANCES, node=NODES, more=st.sampled_from([0, 0, 0, 1]), ttl_s=st.sampled_from([5, 60]), wait_s=WAITS_S)
    def keep(self, vm: str, node: str, more: int, ttl_s: int, wait_s: int) -> None:
        """An instance is to leave its node and keep its place there; now and then it asks for more than it has."""
        row = self.history.ledger.nodes.get(node)
        size = sum(row.uses.get(vm, (0, 0, 0, 0))[2:3]) if row is not None else 0
        claim_id = self._claim_id()
        self._write(lambda h: h.claim(claim_id, vm, size + more, nodes=(node,), keep=True, ttl_s=ttl_s, at_s=self._later(wait_s)))

    @rule(node=NODES, listed=LISTS, host=HOSTS, wait_s=WAITS_S, lag_s=LAGS_S, complete=st.sampled_from([True, True, True, False]))
    def audit(self, node: str, listed: dict[str, Size], host: Hypervisor, wait_s: int, lag_s: int, complete: bool) -> None:
        """A producer audits a node and finds what it finds."""
        if complete:
            self.listed[node] = listed
        at_s = self._later(wait_s)
        self._audit(
            lambda h: h.audit(
                listed, node=node, at_s=at_s, taken_s=at_s - lag_s, epoch=self._epoch(node), complete=complete, hypervisor=host
            )
        )

    @rule(node=NODES, wait_s=WAITS_S, complete=st.sampled_from([True, True, True, True, False]))
    def audit_of_what_is_claimed(self, node: str, wait_s: int, complete: bool) -> None:
        """The common audit: the guests are those that were claimed, each at its size."""
        row = self.history.ledger.nodes.get(node)
        listed: dict[str, Size] = {} if row is None else {vm: _as_claimed(vm, claims) for vm, claims in sorted(row.claims.items())}
        if complete:
            self.listed[node] = listed
        at_s = self._later(wait_s)
        self._audit(lambda h: h.audit(listed, node=node, at_s=at_s, epoch=self._epoch(node), complete=complete, hypervisor=ROOMY))

    @rule(node=NODES, waits=st.lists(st.tuples(st.sampled_from([5, 20, 61]), LAGS_S), min_size=1, max_size=5))
    def quiet(self, node: str, waits: list[tuple[int, int]]) -> None:
        """Nothing changes for a while, as the host tells it: unchanged audits."""
        for wait_s, lag_s in waits:
            self._unchanged(node, self._later(wait_s), lag_s)

    @rule(node=NODES, size=st.integers(0, 4), wait_s=WAITS_S, back=st.booleans(), data=st.data())
    def departure(self, node: str, size: int, wait_s: int, back: bool, data: st.DataObject) -> None:
        """A guest that is there leaves, and may be back at once: a reboot."""
        row = self.history.ledger.nodes[node]
        vm = data.draw(st.sampled_from(sorted({*row.shown, *row.claims}) or ["vm1"]))
        self._write(lambda h: h.event("departed", vm, node=node, at_s=self._later(wait_s), epoch=self._epoch(node)))
        if back:
            self._write(lambda h: h.event("arrived", vm, node=node, size=size, at_s=self._later(2), epoch=self._epoch(node)))
        self._audit(lambda h: h.audit(node=node, at_s=self._later(wait_s), epoch=self._epoch(node), hypervisor=ROOMY))
        self.listed[node] = {}

    @rule(node=NODES, wait_s=WAITS_S)
    def failed_audit(self, node: str, wait_s: int) -> None:
        """A host could not be asked."""
        self._audit(lambda h: h.audit(node=node, at_s=self._later(wait_s), epoch=self._epoch(node), failed="time-out"))

    @rule(node=NODES, wipe=st.booleans(), wait_s=WAITS_S)
    def re_create(self, node: str, wipe: bool, wait_s: int) -> None:
        """The producer starts again, perhaps on a reinstalled host."""
        self.epochs[node] = self._epoch(node) + 1
        listed = {} if wipe else self.listed.get(node, {})
        self.listed[node] = listed
        host = Hypervisor(vcpus=6, memory_mib=12, disk_mib=9, host_uuid=f"of epoch {self.epochs[node]}")
        self._audit(lambda h: h.audit(listed, node=node, at_s=self._later(wait_s), epoch=self._epoch(node), hypervisor=host))

    @rule(change=CHANGES, vm=INSTANCES, node=NODES, size=SIZES, wait_s=WAITS_S, lag_s=LAGS_S, nova=st.booleans(), data=st.data())
    def event(self, change: Any, vm: str, node: str, size: Any, wait_s: int, lag_s: int, nova: bool, data: st.DataObject) -> None:
        """Something happened to an instance; now and then the event knows its claim."""
        at_s, named = self._later(wait_s), data.draw(st.none() | self._some_claim())
        source: dict[str, Any] = {"producer": "nova" if nova else "libvirt", "epoch": self._epoch(node), "claim_id": named}
        self._write(lambda h: h.event(change, vm, node=node, size=size, at_s=at_s, event_s=at_s - lag_s, **source))

    @rule(data=st.data(), wait_s=WAITS_S, node=NODES)
    def renew(self, data: st.DataObject, wait_s: int, node: str) -> None:
        """A starter renews a claim, held or not, known or not."""
        claim_id = data.draw(self._some_claim())
        held = self.history.ledger.claims.get(claim_id)
        self._write(lambda h: h.renew(claim_id, node=node if held is None else held.node_id, at_s=self._later(wait_s)))

    @rule(data=st.data(), wait_s=WAITS_S, node=NODES, reason=REASONS)
    def release(self, data: st.DataObject, wait_s: int, node: str, reason: Any) -> None:
        """Somebody gives a claim back; it may not have been requested yet."""
        claim_id = data.draw(self._some_claim())
        held = self.history.ledger.claims.get(claim_id)
        self._write(lambda h: h.release(claim_id, node=node if held is None else held.node_id, at_s=self._later(wait_s), reason=reason))

    @rule(node=NODES, memory=RULES, vcpus=RULES, status=st.sampled_from(["enabled"] * 5 + ["disabled"]))
    def configure(self, node: str, memory: ResourceRule, vcpus: ResourceRule, status: Any) -> None:
        """The operator speaks."""
        self._write(lambda h: h.configure(node, memory_mib=memory, vcpus=vcpus, status=status))

    @rule(node=NODES, counter=st.integers(0, 9))
    def silence(self, node: str, counter: int) -> None:
        """The timer speaks."""
        self._write(lambda h: h.silent(node=node, epoch=self._epoch(node), counter=counter, at_s=self.history.now_s))

    @rule(epoch=st.integers(1, 3), node=NODES, close=st.booleans(), unconditional=st.booleans())
    def home(self, epoch: int, node: str, close: bool, unconditional: bool) -> None:
        """A home of the affinity group is proposed or closed."""
        self.number += 1
        group = "together"
        closing = GroupHomeClosed(node_id=node, record_id=f"home {self.number}", group_id=group, epoch=epoch, unconditional=unconditional)
        proposal = GroupHomeProposed(group_id=group, record_id=f"home {self.number}", epoch=epoch, node_id=node)
        self._write(lambda h: h.say(closing if close else proposal))

    @rule(value=st.binary(max_size=20) | st.just(b'{"type":"from-the-future"}'), key=st.sampled_from([b"n1", b"", b"\xff"]))
    def garbage(self, value: bytes, key: bytes) -> None:
        """Somebody writes what is no record."""
        self._write(lambda h: h.append(key, value))

    # What goes wrong with them

    @precondition(lambda self: self.history.records)
    @rule(data=st.data(), wait_s=WAITS_S)
    def copy(self, data: st.DataObject, wait_s: int) -> None:
        """A zombie, or somebody who was not acknowledged, appends an earlier record again."""
        step = data.draw(st.sampled_from(self.history.steps))
        before = {**state(self.history.ledger), "next": 0}
        copied = self._write(lambda h: h.again(step, self._later(wait_s)))
        assert {**state(self.history.ledger), "next": 0} == before, f"a copy of {step} changed the state: {copied}"
        assert copied.outcomes == [], "a copy has no outcomes"

    @precondition(lambda self: self.kept_back)
    @rule(data=st.data(), wait_s=WAITS_S)
    def late(self, data: st.DataObject, wait_s: int) -> None:
        """A record that was kept back comes now."""
        key, value = self.kept_back.pop(data.draw(st.integers(0, len(self.kept_back) - 1)))
        self._write(lambda h: h.append(key, value, self._later(wait_s)))

    @precondition(lambda self: self.history.records)
    @rule()
    def restart(self) -> None:
        """The process crashes and starts from a snapshot."""
        self.history.ledger = restored(encoded(self.history.ledger))

    # What must hold

    @invariant()
    def use_is_the_sum_of_its_parts(self) -> None:
        """Node by node: `used`, `uses`, `io_claims` and `limits` are what they are derived from; claims and nodes agree on who is held."""
        ledger = self.history.ledger
        for node in ledger.nodes.values():
            assert tuple(node.used) == full_use(node)
            assert node.uses == {i: node.use_of(i) for i in {*node.shown, *node.claims}}
            assert node.groups_of == {i: groups for i in {*node.shown, *node.claims} if (groups := node.groups_among(i))}
            assert node.io_claims == sum(claim.confirmed_ms is None for claim in node.held())
            kept = node.limits
            node.refresh()
            assert kept == node.limits
        assert {claim.claim_id for node in ledger.nodes.values() for claim in node.held()} == set(ledger.claims)

    def teardown(self) -> None:
        """Replay equals live, and the long way ends where the short one does."""
        replay = Ledger(0, 1)
        for written in self.history.records:
            replay.apply(*written)
        assert state(replay) == state(self.history.ledger) == state(self.long_way.ledger)
        assert encoded(replay) == encoded(restored(encoded(replay)))
        for start in (0, len(self.history.records) // 2):
            self._changes_add_up(start)

    def _changes_add_up(self, start: int) -> None:
        """`diff --why`: from any record on, what each record changed adds up to the difference, for every figure of every node."""
        ledger, observed, changes, before = Ledger(0, 1), Observed(0), Changes({}), dict[str, NodeResources]()
        for number, written in enumerate(self.history.records):
            if number == start:
                before = {node_id: node_resources(ledger, node_id, observed) for node_id in ledger.nodes}
                changes = Changes(before)
            step = ledger.apply(*written)
            assert step is not None
            observed.apply(ledger, step)
            changes.apply(ledger, observed, step)
        for node_id in ledger.nodes:
            made = [change for change in changes.found if change.node_id == node_id]
            old = figures(before[node_id]) if node_id in before else {}
            assert total(made) == difference(old, figures(node_resources(ledger, node_id, observed)))

    # The works

    def _write(self, say: Any) -> Step:
        """Append with every fold and compare them; then look at what the record did."""
        ledger = self.history.ledger
        snapshot = encoded(ledger)
        before = {node_id: _before(node) for node_id, node in ledger.nodes.items()}
        rows, held = state(ledger)["nodes"], dict(ledger.claims)
        step: Step = say(self.history)
        written = self.history.records[-1]
        self.long_way.append(written.key, written.value, (written.time_ms - START_MS) // 1000)
        assert self.long_way.ledger.digest == ledger.digest, "a short cut says something else"
        other = restored(snapshot)
        again = other.apply(*written)
        assert again is not None
        assert (again.outcomes, again.ignored, again.node_ids) == (step.outcomes, step.ignored, step.node_ids)
        assert state(other) == state(ledger), "who was restored before this record says something else"
        assert {i for i, row in state(ledger)["nodes"].items() if i in rows and row != rows[i]} <= set(step.node_ids), (
            "a row changed unsaid"
        )
        assert {claim.claim_id for claim in step.closed} == held.keys() - ledger.claims.keys()
        assert all((step.outcome_of(claim.claim_id), claim.claim_id) in fates(step) for claim in step.closed)
        self._check_over(step, before)
        if isinstance(step.event, ClaimRequested):
            self._check_grants(step, step.event, before)
        return step

    def _audit(self, say: Any) -> None:
        """Append an audit, or keep it back: it was taken, and comes late or never."""
        self.number += 1
        if self.number % 7:
            self._write(say)
            return
        aside = History()
        aside._counters = self.history._counters
        say(aside)
        self.kept_back.append((aside.records[0].key, aside.records[0].value))

    def _check_over(self, step: Step, before: dict[str, Before]) -> None:
        """A node goes over only by an observation, by the operator's word, or by a forced claim that says so."""
        for node_id in step.node_ids:
            node = self.history.ledger.nodes[node_id]
            for r, resource in enumerate(RESOURCES):
                grown = node.used[r] > (before[node_id].used[r] if node_id in before else 0)
                if not grown or node.used[r] <= node.limits[r] or isinstance(step.event, NodeObserved | InstanceObserved | NodeConfigured):
                    continue
                granted = [outcome for outcome in step.outcomes if outcome.outcome == "granted" and outcome.node_id == node_id]
                named = {shortfall.resource for outcome in granted for shortfall in outcome.overrun}
                assert resource in named, f"{step.event} takes {resource} of {node_id} to {node.used[r]} of {node.limits[r]}"

    def _check_grants(self, step: Step, event: ClaimRequested, before: dict[str, Before]) -> None:
        """All or none are granted, where they were asked for, and the limits they carry hold; an overrun is named by forced ones alone."""
        granted = [outcome for outcome in step.outcomes if outcome.outcome == "granted"]
        assert len(granted) in {0, len(event.items)} or step.ignored
        for item, outcome in zip(event.items, granted, strict=False):
            assert outcome.claim_id == item.claim_id
            assert outcome.node_id in item.nodes
            assert item.forced or not outcome.overrun
            self._check_devices(item, outcome, before[outcome.node_id].holders)
            if len(event.items) == 1:
                self._check_limits(item, outcome, before[outcome.node_id])

    def _check_devices(self, item: ClaimItem, outcome: ClaimOutcome, holders: dict[str, set[str]]) -> None:
        """CPUs and devices go to one instance at a time, whoever forced what; who has a physical function has its virtual ones."""
        if item.keep:
            return  # It takes what its instance has there already, whoever else that was given to by a host's report.
        assert (outcome.granted is not None) == bool(item.numa or item.pci)
        if outcome.granted is None:
            return
        assert len(outcome.granted.cells) == len(item.numa)
        assert len(outcome.granted.pci_addresses) == sum(want.count for want in item.pci)
        taken = {*outcome.granted.pci_addresses, *(f"CPU {cpu}" for cell in outcome.granted.cells for cpu in cell.held_cpus)}
        kin = {"d0": {"d1", "d2"}, "d1": {"d0"}, "d2": {"d0"}}
        for each in taken:
            for other in {each, *kin.get(each, ())}:
                assert holders.get(other, set()) <= {item.instance_id}, f"{each} goes to {item.instance_id}, {holders[other]} have {other}"
            holders.setdefault(each, set()).add(item.instance_id)

    def _check_limits(self, item: ClaimItem, outcome: ClaimOutcome, before: Before) -> None:
        node = self.history.ledger.nodes[outcome.node_id]
        assert not item.resize or before.on_their_way.get(item.instance_id, set()) <= {outcome.request_id}
        limits = Limits() if item.limits is None or item.forced else item.limits
        assert limits.io_ops_max is None or node.io_ops() <= limits.io_ops_max
        if node.claims[item.instance_id] == [self.history.ledger.claims[item.claim_id]] and item.instance_id not in node.shown:
            assert limits.instances_max is None or node.instance_count() <= limits.instances_max
            assert limits.memory_mib is None or not item.resources.memory_mib or node.used[2] <= limits.memory_mib
        if item.group is not None and item.group.policy == "anti-affinity":
            others = before.members.get(item.group.group_id, set()) - {item.instance_id}
            assert len(others) < item.group.max_per_node
        if item.group is not None and item.group.policy == "affinity":
            assert item.group.epoch > node.homes_closed.get(item.group.group_id, 0)

    def _unchanged(self, node: str, at_s: int, lag_s: int) -> None:
        digest = digest_of(self.listed[node])
        self._audit(lambda h: h.audit(node=node, at_s=at_s, taken_s=at_s - lag_s, epoch=self._epoch(node), unchanged=digest))

    def _later(self, wait_s: int) -> int:
        return self.history.now_s + wait_s

    def _epoch(self, node: str) -> int:
        return self.epochs.setdefault(node, 1)

    def _claim_id(self) -> str:
        self.claim_ids.append(f"c{len(self.claim_ids)}")
        return self.claim_ids[-1]

    def _some_claim(self) -> st.SearchStrategy[str]:
        """A claim held, known, or to come."""
        held = self.history.held()
        return st.sampled_from([*held, *held, *self.claim_ids[-4:], f"c{len(self.claim_ids)}", f"c{len(self.claim_ids) + 1}"])


def _before(node: Node) -> Before:
    groups = {claim.group.group_id for claim in node.held() if claim.group is not None} | {shown.group_id for shown in node.shown.values()}
    on_their_way = {i: {claim.request_id for claim in claims if claim.confirmed_ms is None} for i, claims in node.claims.items()}
    holders: dict[str, set[str]] = {}
    for claim in node.held():
        for held in (*(f"CPU {cpu}" for cpu in claim.pinned_cpus), *claim.pci_addresses):
            holders.setdefault(held, set()).add(claim.instance_id)
    for instance_id, shown in node.shown.items():
        for held in (*(f"CPU {cpu}" for cpu in shown.report.pinned_cpus), *shown.report.pci_addresses):
            holders.setdefault(held, set()).add(instance_id)
    return Before(list(node.used), {group_id: node.members(group_id) for group_id in groups}, on_their_way, holders)


def _as_claimed(instance_id: str, claims: list[Claim]) -> InstanceReport:
    largest = max(claims, key=lambda claim: claim.amounts)
    vcpus, _, memory_mib, disk_mib = largest.amounts
    return InstanceReport(
        instance_id=instance_id,
        resources=ObservedResources(vcpus=vcpus, memory_mib=memory_mib, disk_mib=disk_mib),
        numa_cells=tuple(sorted(cell.cell_id for cell in largest.cells)),
        pinned_cpus=largest.pinned_cpus,
        pci_addresses=largest.pci_addresses,
    )
