"""Who is resized and later resized back gets what it asks for, not what the size in between had (decision 0025)."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from projections.node import Claim
from schemas.audits import InstanceReport
from schemas.claims import ClaimReleased, ClaimRequested, NodeObserved
from schemas.inventory import HugePages, Hypervisor, NumaCell, PciDevice
from schemas.requests import Flavor, NumaWant, PciWant, PlacementRequested
from schemas.resources import ObservedResources
from schemas.results import PlacementFailed
from schemas.topics import CLAIMS, REQUESTS, RESULTS
from streams.scheduler import Scheduler
from streams.scheduling.explain import spelled_out
from streams.scheduling.fleet import Fleet
from streams.scheduling.moving import in_words_of_its_own
from streams.scheduling.options import Options
from streams.scheduling.policy import Policy
from tests.ledger_history import History, item
from tests.scheduling_world import START_MS, World, hosts, rerun, said, settle

GPUS = tuple(PciDevice(address=f"0000:0{number}:00.0", vendor_id="10de", product_id="1db4") for number in range(4))
PAGES = tuple(HugePages(size_kib=size_kib, total=8 * 1024 * 1024 // size_kib) for size_kib in (2_048, 1_048_576))
CELL = NumaCell(cell_id=0, cpus=(), dedicated_cpus=tuple(range(8)), memory_mib=32_768, pages=PAGES)
NIC = PciDevice(address="0000:09:00.0", vendor_id="8086", product_id="1572")
ALIASES = ('{"name":"gpu","vendor_id":"10de","product_id":"1db4"}', '{"name":"nic","vendor_id":"8086","product_id":"1572"}')
POLICY = Policy(options=Options(pci_alias=ALIASES))


class Host:
    """A node with four GPUs and eight dedicated CPUs, its guests as they run, and one scheduler."""

    def __init__(self, engine_name: str, *others: str, vcpus: int = 0, siblings: tuple[tuple[int, ...], ...] = ()) -> None:
        """With `vcpus` it has so many shared CPUs besides, and ordinary memory beside its huge pages."""
        cell = structs.replace(CELL, cpus=tuple(range(100, 100 + vcpus)), siblings=siblings)
        if vcpus:
            cell = structs.replace(cell, pages=(HugePages(size_kib=4, total=4 * 1024 * 1024), *PAGES))
        self.fields: dict[str, Any] = {"pcpus": 8, "numa_cells": (cell,), "pci_devices": (*GPUS, NIC), "memory_mib": 32_768}
        self.here: World = hosts("n1", *others, claims=1, **self.fields)
        self.scheduler: Scheduler = self.here.scheduler(policy=POLICY, engine_name=engine_name)
        self.audits, self.running = 1, dict[str, Claim]()
        settle(self.scheduler)

    def ask(self, request_id: str, instance_id: str, flavor: Flavor, **move: Any) -> Claim | None:
        """Place an instance, or give it another size; its claim, None where that was refused."""
        known = self.here.ledgers()[0].nodes["n1"].claims
        if not move:
            move = {"action": "resize", "source_node": "n1"} if instance_id in known else {"requested_nodes": ("n1",)}
        self.here.say(REQUESTS, PlacementRequested(request_id=request_id, flavor=flavor, instance_ids=(instance_id,), **move))
        settle(self.scheduler)
        answer = self.here.answer(request_id)
        return self.here.ledgers()[0].claims[answer.named[0].claim_id] if answer.placed else None

    def runs(self, request_id: str, instance_id: str, flavor: Flavor) -> Claim:
        """Place an instance, or give it another size, which must be granted; it runs as claimed beside those before it."""
        claim = self.ask(request_id, instance_id, flavor)
        assert claim is not None, self.here.answer(request_id)
        self.running[instance_id] = claim
        self.run(*self.running.values())
        return claim

    def give_back(self, claim: Claim) -> None:
        """The operator releases a claim."""
        self.here.say(CLAIMS, ClaimReleased(node_id="n1", record_id="back", claim_id=claim.claim_id, reason="operator"))
        settle(self.scheduler)

    def run(self, *claims: Claim, node_id: str = "n1") -> None:
        """The guests of these claims run as claimed, and an audit says so."""
        self.audits += 1
        self.here.clock.now_ms += 20_000
        reports = [
            InstanceReport(
                instance_id=claim.instance_id,
                resources=ObservedResources(**dict(zip(("vcpus", "pcpus", "memory_mib", "disk_mib"), claim.amounts, strict=True))),
                pci_addresses=claim.pci_addresses,
                pinned_cpus=claim.pinned_cpus,
            )
            for claim in claims
        ]
        host = Hypervisor(vcpus=8, disk_mib=102_400, **self.fields)
        now_ms = self.here.clock.now_ms
        self.here.say(
            CLAIMS,
            NodeObserved(
                node_id=node_id,
                producer=f"audits of {node_id}",
                epoch=1,
                counter=self.audits,
                taken_at_ms=now_ms,
                mono_ms=now_ms - START_MS,
                hypervisor=host,
                instances=tuple(sorted(reports, key=lambda report: report.instance_id)),
            ),
        )
        settle(self.scheduler)


def with_gpus(gpus: int) -> Flavor:
    return Flavor(name=f"g{gpus}", vcpus=1, memory_mib=1024 * gpus, extra_specs={"pci_passthrough:alias": f"gpu:{gpus}"})


def with_cpus(cpus: int) -> Flavor:
    return Flavor(name=f"c{cpus}", vcpus=cpus, memory_mib=1024 * cpus, extra_specs={"hw:cpu_policy": "dedicated"})


@pytest.mark.parametrize("engine_name", ["reference", "profiles"])
def test_devices_are_those_asked_for_however_often_a_size_comes_back(engine_name: str) -> None:
    host = Host(engine_name)
    for number, gpus in enumerate((2, 1, 2, 1, 3, 2, 4, 1, 2)):
        claim = host.runs(f"r{number}", "i", with_gpus(gpus))
        assert len(set(claim.pci_addresses)) == gpus


@pytest.mark.parametrize("engine_name", ["reference", "profiles"])
def test_dedicated_cpus_and_memory_are_those_asked_for(engine_name: str) -> None:
    host = Host(engine_name)
    for number, cpus in enumerate((4, 2) * 7):
        claim = host.runs(f"r{number}", "i", with_cpus(cpus))
        assert (len(claim.pinned_cpus), [cell.memory_mib for cell in claim.cells]) == (cpus, [1024 * cpus])


@pytest.mark.parametrize("size", ["2048", "large", "any", "1GB"])
def test_pages_are_those_asked_for(size: str) -> None:
    host = Host("reference")
    for number, cpus in enumerate((4, 2) * 5):
        wanted = {"hw:cpu_policy": "dedicated", "hw:mem_page_size": size}
        claim = host.runs(f"r{number}", "i", Flavor(vcpus=cpus, memory_mib=1024 * cpus, extra_specs=wanted))
        assert [(cell.memory_mib, cell.page_size_kib) for cell in claim.cells] == [(1024 * cpus, 2048 if size == "2048" else 1_048_576)]


@pytest.mark.parametrize("engine_name", ["reference", "profiles"])
def test_devices_that_others_have_by_then_are_not_given_twice(engine_name: str) -> None:
    host = Host(engine_name)
    host.runs("r1", "i", with_gpus(2))
    host.runs("r2", "i", with_gpus(1))
    host.runs("r3", "j", with_gpus(3))

    back = host.ask("r4", "i", with_gpus(2))

    assert back is None
    assert host.here.answer("r4").reason == "no-valid-node"


@pytest.mark.parametrize("engine_name", ["reference", "profiles"])
def test_devices_are_those_asked_for_also_once_the_claim_of_the_size_in_between_was_given_back(engine_name: str) -> None:
    host = Host(engine_name)
    host.runs("a", "i", with_gpus(2))
    host.give_back(host.runs("b", "i", with_gpus(1)))

    back = host.runs("c", "i", with_gpus(2))

    assert len(set(back.pci_addresses)) == 2
    assert host.ask("d", "j", with_gpus(3)) is None


def test_devices_of_another_kind_that_the_size_in_between_had_are_not_taken_for_those_asked_for() -> None:
    host = Host("reference")
    host.runs("a", "i", with_gpus(1))
    host.give_back(host.runs("b", "i", Flavor(vcpus=1, memory_mib=1024, extra_specs={"pci_passthrough:alias": "nic:1"})))

    back = host.runs("c", "i", with_gpus(1))

    assert set(back.pci_addresses) <= {gpu.address for gpu in GPUS}


LARGE, CPUS = {"hw:mem_page_size": "large"}, {"hw:cpu_policy": "dedicated"}
MIXED = {"hw:cpu_policy": "mixed"}
ISOLATED, SIBLINGS = CPUS | {"hw:emulator_threads_policy": "isolate"}, CPUS | {"hw:cpu_thread_policy": "require"}


@pytest.mark.parametrize(
    ("first", "between"),
    [
        (LARGE, {"hw:numa_nodes": "1"}),
        ({"hw:numa_nodes": "1"}, LARGE),
        (LARGE, {"hw:mem_page_size": "small"}),
        ({"hw:mem_page_size": "small"}, LARGE),
        ({"hw:mem_page_size": "any"}, {"hw:numa_nodes": "1"}),
        ({"hw:mem_page_size": "2048"}, LARGE),
        (ISOLATED, CPUS),
        (CPUS, ISOLATED),
        (ISOLATED | LARGE, CPUS | LARGE),
        (MIXED | {"hw:cpu_dedicated_mask": "0"}, MIXED | {"hw:cpu_dedicated_mask": "1"}),
    ],
)
@pytest.mark.parametrize("engine_name", ["reference", "profiles"])
def test_pages_and_cpus_for_the_emulator_are_those_asked_for_also_once_the_size_in_between_was_given_back(
    engine_name: str, first: dict[str, str], between: dict[str, str]
) -> None:
    """Both sizes have the same memory and CPUs, so only their kind tells them apart."""
    host = Host(engine_name, vcpus=8)
    had = host.runs("a", "i", Flavor(vcpus=2, memory_mib=4096, extra_specs=first))
    host.give_back(host.runs("b", "i", Flavor(vcpus=2, memory_mib=4096, extra_specs=between)))

    back = host.ask("c", "i", Flavor(vcpus=2, memory_mib=4096, extra_specs=first))

    assert back is not None
    kinds = [[(cell.page_size_kib, len(cell.emulator_cpus), cell.guest_cpus) for cell in claim.cells] for claim in (had, back)]
    assert kinds[0] == kinds[1]


def test_siblings_are_those_asked_for_also_once_the_size_in_between_was_given_back() -> None:
    """Of the cores of two threads one has a thread left, and three are free; who asked for none in particular ran on lone ones."""
    host = Host("reference", siblings=tuple((cpu, cpu + 1) for cpu in range(0, 8, 2)))
    host.runs("a", "i", Flavor(vcpus=2, memory_mib=1024, extra_specs=SIBLINGS))
    lone = host.ask("b", "i", Flavor(vcpus=2, memory_mib=1024, extra_specs=CPUS))
    assert lone is not None
    cells = tuple(structs.replace(cell, pinned_cpus=(1, 3), held_cpus=(1, 3)) for cell in lone.cells)

    assert not is_unchanged(host, structs.replace(lone, numa=with_threads(lone, "require"), cells=cells))
    assert is_unchanged(host, structs.replace(lone, numa=with_threads(lone, "require")))
    assert is_unchanged(host, structs.replace(lone, cells=cells))


def with_threads(claim: Claim, policy: str) -> tuple[NumaWant, ...]:
    return tuple(structs.replace(want, thread_policy=policy) for want in claim.numa)


def is_unchanged(host: Host, claim: Claim) -> bool:
    """Whether an instance that has this claim, and no other, may ask in its words again."""
    ledger = host.here.ledgers()[0]
    node = ledger.nodes["n1"]
    node.claims[claim.instance_id] = [claim]
    asked = item(claim.claim_id, claim.instance_id, 0, numa=claim.numa, pci=claim.pci)
    return in_words_of_its_own(asked, [node]) == asked


@given(st.data())
def test_who_was_granted_what_it_wants_asks_in_the_same_words_again(data: st.DataObject) -> None:
    """So that a request that somebody takes over has what is held for it already, and takes nothing twice."""
    threads = data.draw(st.sampled_from([1, 2, 4]))
    cells = tuple(
        NumaCell(
            cell_id=number,
            cpus=tuple(range(100 * number, 100 * number + 20)),
            dedicated_cpus=tuple(range(100 * number, 100 * number + data.draw(st.integers(0, 8)))),
            siblings=tuple(tuple(range(at, at + threads)) for at in range(100 * number, 100 * number + 20, threads) if threads > 1),
            memory_mib=4096,
            pages=data.draw(st.sampled_from([(), PAGES, (HugePages(size_kib=4, total=1_048_576), *PAGES), PAGES[:1]])),
        )
        for number in range(data.draw(st.integers(1, 3)))
    )
    policies: st.SearchStrategy[Literal["shared", "dedicated", "mixed"]] = st.sampled_from(["shared", "dedicated", "mixed"])
    near_to = st.sampled_from([None, *range(len(cells))])
    devices = tuple(PciDevice(address=f"{number}", vendor_id="10de", numa_cell=data.draw(near_to)) for number in range(6))
    host = Hypervisor(vcpus=60, pcpus=24, memory_mib=8192, disk_mib=10, numa_cells=cells, pci_devices=devices)
    history = History()
    history.audit({}, at_s=0, hypervisor=host)
    for number in range(4):
        numa = tuple(
            NumaWant(
                cell_id=place,
                cpus=tuple(range(10 * place, 10 * place + data.draw(st.integers(1, 3)))),
                pinned_cpus=tuple(range(10 * place + 5, 10 * place + 5 + data.draw(st.integers(1, 3)))) if policy == "mixed" else (),
                memory_mib=data.draw(st.sampled_from([128, 1024])),
                page_size=data.draw(st.sampled_from(["", "small", "large", "any"])),
                page_size_kib=data.draw(st.sampled_from([None, None, 0, 2048])),
                cpu_policy=policy,
                thread_policy=data.draw(st.sampled_from(["", "prefer", "require", "isolate"])),
                emulator_threads=data.draw(st.sampled_from(["", "share", "isolate"])),
            )
            for place in range(data.draw(st.integers(1, 2)))
            for policy in (data.draw(policies),)
        )
        near: Any = data.draw(st.sampled_from(["legacy", "required", "preferred", "socket"]))
        gpus = PciWant(alias="gpu", specs=({"vendor_id": "10de"},), count=data.draw(st.integers(1, 3)), numa_policy=near)
        asked = item(f"c{number}", f"i{number}", 128, numa=numa, pci=(gpus,) if data.draw(st.booleans()) else ())
        history.claims(asked, at_s=1 + number)
        again = in_words_of_its_own(asked, [history.node()]) if f"c{number}" in history.ledger.claims else asked
        assert again == asked


@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize("engine_name", ["reference", "profiles"])
def test_devices_are_those_asked_for_on_the_way_back_from_another_node(engine_name: str, live: bool) -> None:
    host = Host(engine_name, "n2")
    host.runs("a", "i", with_gpus(2))
    host.runs("b", "i", with_gpus(1))

    away = host.ask("c", "i", with_gpus(1), action="migrate", source_node="n1", live=live)
    assert away is not None
    assert away.node_id == "n2"
    host.run(away, node_id="n2")
    back = host.ask("d", "i", with_gpus(2), action="migrate", source_node="n2", live=live)

    assert back is not None
    assert (back.node_id, len(set(back.pci_addresses))) == ("n1", 2)


@pytest.mark.parametrize("engine_name", ["reference", "profiles"])
def test_two_guests_that_are_resized_back_at_once_are_explained_as_they_were_decided(engine_name: str) -> None:
    host = Host(engine_name)
    for request_id, instance_id, gpus in (("a", "i", 2), ("b", "i", 1), ("c", "j", 2), ("d", "j", 1), ("e", "k", 1)):
        host.runs(request_id, instance_id, with_gpus(gpus))

    both = PlacementRequested(request_id="both", flavor=with_gpus(2), count=2, instance_ids=("i", "j"), action="resize", source_node="n1")
    host.here.say(REQUESTS, both)
    settle(host.scheduler)

    (failed,) = said(host.here, RESULTS, PlacementFailed)
    items = {item.claim_id: item for event in said(host.here, CLAIMS, ClaimRequested) for item in event.items}
    again = [
        rerun(host.here.ledgers_at(decision.cut), both, number, decision, items, POLICY)
        for number, decision in enumerate(spelled_out(both, failed.decisions))
    ]
    assert [(each.same, each.again.chosen) for each in again] == [(True, "n1"), (True, "")]


def test_of_a_claim_that_has_all_it_wants_the_words_stay_whatever_order_its_devices_were_chosen_in() -> None:
    """Who takes a request over shares what is held for it already."""
    far, near = (
        PciDevice(address=f"0000:0{number}:00.0", vendor_id="10de", product_id=product, numa_cell=cell)
        for number, product, cell in ((1, "far", None), (2, "near", 0))
    )
    fields: dict[str, Any] = {"pcpus": 8, "memory_mib": 32_768, "numa_cells": (CELL,), "pci_devices": (far, near)}
    here = hosts("n1", claims=1, **fields)
    aliases = ('{"name":"any","vendor_id":"10de"}', '{"name":"far","vendor_id":"10de","product_id":"far"}')
    policy = Policy(options=Options(pci_alias=aliases))
    specs = {"hw:cpu_policy": "dedicated", "pci_passthrough:alias": "any:1,far:1", "hw:pci_numa_affinity_policy": "preferred"}
    asked = PlacementRequested(request_id="r", flavor=Flavor(vcpus=1, memory_mib=1024, extra_specs=specs), instance_ids=("i",))
    here.say(REQUESTS, asked)
    settle(here.scheduler(policy=policy))

    fleet = Fleet(here.ledgers())
    (claim,) = fleet.ledgers[0].claims.values()
    again = fleet.ask(asked, 0, owner="successor", options=policy.options)

    assert claim.pci_addresses == (near.address, far.address)
    assert (again.item.numa, again.item.pci) == (claim.numa, claim.pci)


def test_a_size_that_cannot_be_said_in_other_words_any_more_is_refused_with_what_to_do() -> None:
    isolated = {"hw:cpu_policy": "dedicated", "hw:cpu_thread_policy": "isolate", "hw:emulator_threads_policy": "isolate"}
    host, claims = Host("reference"), list[Claim]()
    for number in range(12):
        cpus = 2 - number % 2
        claim = host.ask(f"r{number}", "i", Flavor(vcpus=cpus, memory_mib=1024 * cpus, extra_specs=isolated))
        if claim is None:
            break
        assert len(claim.cells[0].guest_cpus) == cpus
        claims.append(claim)
        host.run(claim)

    (failed,) = said(host.here, RESULTS, PlacementFailed)
    reasons = [each.reason for each in failed.decisions[0].rejections if each.filter == "request"]
    assert len(claims) == 4
    assert reasons == ["the instance has had this size here too often to have it once more; delete it and ask for a new one"]
