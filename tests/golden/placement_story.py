"""The story behind `placements_v1.jsonl`: requests of every kind, answered by a scheduler on a fleet of a few odd nodes.

The file is the log as it was written then. It is told anew only to make a new file; what stands in it is read for ever.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from schemas.audits import InstanceReport
from schemas.claims import InstanceObserved, NodeConfigured, NodeObserved
from schemas.codec import decode
from schemas.inventory import Aggregate, HugePages, Hypervisor, NumaCell, OperatorFields, PciDevice, ResourceRule
from schemas.requests import Hints, NumaWant, PciWant, ServerGroup
from schemas.resources import ObservedResources
from schemas.results import InstancesPlaced
from schemas.topics import CLAIMS, REQUESTS, RESULTS
from streams.log.base import Record, TopicSpec
from streams.log.memory import MemoryLog
from streams.scheduling.policy import PACK, SPREAD, Policy
from tests.scheduling_world import START_MS, Clock, World

FILE = Path(__file__).parent / "placements_v1.jsonl"
TOPICS = (TopicSpec(CLAIMS, 3), TopicSpec(REQUESTS, 2), TopicSpec(RESULTS, 2))
TOGETHER = ServerGroup(group_id="together", policy="affinity")
APART = ServerGroup(group_id="apart", policy="anti-affinity")
TURNS_MAX = 40


def told() -> World:
    """The whole story."""
    clock = Clock()
    here = World(MemoryLog(list(TOPICS), clock.wall), clock)
    _fleet(here)
    _plain(here)
    _groups(here)
    _moves(here)
    _race(here)
    return here


def _fleet(here: World) -> None:
    cells = tuple(
        NumaCell(
            cell_id=n,
            cpus=tuple(range(8 * n, 8 * n + 8)),
            dedicated_cpus=tuple(range(8 * n, 8 * n + 4)),
            siblings=tuple((cpu, cpu + 1) for cpu in range(8 * n, 8 * n + 8, 2)),
            memory_mib=16_384,
            pages=(HugePages(size_kib=2048, total=1024),),
        )
        for n in (0, 1)
    )
    devices = tuple(PciDevice(address=f"0000:81:00.{n}", vendor_id="8086", device_type="type-VF", numa_cell=0) for n in (1, 2))
    for number in range(12):
        node_id, odd = f"n{number:02}", number % 4
        has = Hypervisor(
            vcpus=8 + 4 * odd,
            pcpus=8 if odd == 3 else 0,
            memory_mib=16_384 * (1 + odd % 2),
            disk_mib=(100 + 50 * odd) * 1024,
            numa_cells=cells if odd == 3 else (),
            pci_devices=devices if number == 3 else (),
        )
        audit = NodeObserved(
            node_id=node_id, producer=f"audits of {node_id}", epoch=1, counter=1, taken_at_ms=START_MS, mono_ms=1,
            hypervisor=has, instances=(),
        )  # fmt: skip
        here.say(CLAIMS, audit)
        fields = OperatorFields(
            zone=f"az{number % 3}",
            vcpus=ResourceRule(ratio_milli=2000 if odd else 1000),
            memory_mib=ResourceRule(ratio_milli=1000, reserved=512 * odd),
            disk_mib=ResourceRule(ratio_milli=1000),
            aggregates=(Aggregate(name="fast", metadata={"ssd": "true"}),) if odd == 1 else (),
            traits=("CUSTOM_FAST",) if odd == 1 else (),
        )
        here.say(CLAIMS, NodeConfigured(node_id=node_id, record_id=f"fields of {node_id}", fields=fields))
    here.set_status("n10", "disabled")


def _plain(here: World) -> None:
    """Sizes, labels, hints, cells and devices; some at once, so that claims in flight are laid over decisions."""
    for number in range(8):
        here.request(f"plain-{number}", vcpus=1 + number % 3, memory_mib=2048)
    _answered(here)
    here.request("many", vcpus=2, memory_mib=4096, count=5)
    here.request("zone", availability_zone="az1")
    here.request("traits", traits_required=("CUSTOM_FAST",))
    here.request("not there", traits_required=("CUSTOM_NOWHERE",))
    here.request("too large", vcpus=200)
    here.request("forced", vcpus=40, forced_nodes=("n00",))
    here.request("only there", requested_nodes=("n05", "n06"), ignored_nodes=("n05",))
    here.request("dry", vcpus=4, dry_run=True)
    here.request("volume", boot_from_volume=True)
    _answered(here)
    pinned = (NumaWant(pinned_cpus=(0, 1), memory_mib=512, cpu_policy="dedicated"),)
    here.request("cells", numa=pinned, count=2)
    here.request("device", pci=(PciWant(alias="vf", specs=({"vendor_id": "8086"},)),))
    here.request("pages", numa=(NumaWant(cpus=(0,), memory_mib=512, page_size="large"),))
    _answered(here, PACK)


def _groups(here: World) -> None:
    for number in range(3):
        here.request(f"together-{number}", group=TOGETHER)
        here.request(f"apart-{number}", group=APART, count=2)
    _answered(here)
    here.request("together at once", group=msgspec.structs.replace(TOGETHER, group_id="g2"), vcpus=3, count=3)
    here.request("near", group=msgspec.structs.replace(TOGETHER, group_id="g3", policy="soft-affinity"), count=2)
    here.request("not beside", hints=Hints(different_host=(here.requests[0].instance(0),)))
    _answered(here, PACK)


def _moves(here: World) -> None:
    (source,) = {named.node_id for named in here.answer("plain-0").named}
    guest = here.requests[0].instance(0)
    here.request("migrate", action="migrate", source_node=source, instance_ids=(guest,))
    _answered(here)
    grown = here.requests[1].instance(0)
    (there,) = {named.node_id for named in here.answer("plain-1").named}
    size = ObservedResources(vcpus=2, memory_mib=2048, disk_mib=0)
    started = InstanceObserved(
        node_id=there, producer="libvirt", epoch=1, counter=1, change="started", event_time_ms=here.clock.now_ms,
        instance=InstanceReport(instance_id=grown, resources=size),
    )  # fmt: skip
    here.say(CLAIMS, started)
    here.request("resize", action="resize", vcpus=3, instance_ids=(grown,))
    here.request("resize too far", action="resize", vcpus=99, instance_ids=(grown,))
    here.request("meant nothing", action="evacuate", instance_ids=(guest,))
    here.cancel("plain-2")
    here.request("unwanted")
    here.cancel("unwanted")
    _answered(here)


def _race(here: World) -> None:
    """Results that do not count: of another owner, and one appended too late before one that was not."""
    placed = next(each for each in _results(here) if isinstance(each, InstancesPlaced) and each.placements)
    here.say(RESULTS, msgspec.structs.replace(placed, owner="slow", placements=()))
    here.clock.now_ms += 1_000
    request = here.request("raced")
    late = msgspec.structs.replace(placed, request_id=request.request_id, owner="slow", commit_by_ms=START_MS)
    here.say(RESULTS, late)
    _answered(here)


def _results(here: World) -> list[Any]:
    """Results, partition by partition."""
    return [decode(RESULTS, record.value) for number in range(2) for record in here.records(RESULTS, number)]


def _answered(here: World, policy: Policy = SPREAD) -> None:
    """A scheduler with a policy answers what is open."""
    scheduler = here.scheduler(policy=policy)
    for _ in range(TURNS_MAX):
        if not scheduler.turn():
            scheduler.close()
            here.clock.now_ms += 1_000
            return
    raise AssertionError("the scheduler does not come to rest")


def lines_of(here: World) -> list[dict[str, Any]]:
    """The lines of the file: every record of every topic."""
    records = [record for topic in TOPICS for number in range(topic.partitions) for record in here.records(topic.name, number)]
    return [
        {
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "time_ms": record.time_ms,
            "key": record.key.decode(),
            "value": record.value.decode(),
        }
        for record in records
    ]


def written(line: dict[str, Any]) -> Record:
    """A line as the record that it was."""
    return Record(line["topic"], line["partition"], line["offset"], line["time_ms"], line["key"].encode(), line["value"].encode(), ())
