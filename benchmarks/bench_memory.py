"""How much memory do 100,000 nodes with 1,000,000 claims take? Aim: below 2 GiB resident, measured in a process that does nothing else.

Each node is audited, its claims are granted and confirmed by a full audit that lists a guest for each. `folded` is a process that folded
it all, `restored` one that loaded the same from a snapshot. Run
`python -m benchmarks.bench_memory [--nodes N] [--claims-per-node N] [--json]`.
"""

from __future__ import annotations

import argparse
import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Report, arguments, positive
from producers.ledger_load import HOST, SIZES
from projections.ledger import Ledger
from projections.snapshots import encoded, restored
from schemas.audits import InstanceReport
from schemas.claims import ClaimItem, ClaimRequested, NodeObserved, PartitionOpened
from schemas.codec import encode
from schemas.ids import claim_id
from schemas.resources import ObservedResources

START_MS = 1_700_000_000_000
MIB = 1 << 20


def main() -> None:
    asked = arguments(__doc__ or "", add)
    if asked.measure:
        measure(asked.measure, asked.snapshot, asked.nodes, asked.claims_per_node)
        return
    with Report("memory", as_json=asked.json) as report, tempfile.TemporaryDirectory() as folder:
        for subject in ("folded", "restored"):
            command = [sys.executable, "-m", "benchmarks.bench_memory", "--measure", subject, "--snapshot", f"{folder}/snapshot"]
            command += ["--nodes", str(asked.nodes), "--claims-per-node", str(asked.claims_per_node)]
            ran = subprocess.run(command, cwd=Path(__file__).parents[1], stdout=subprocess.PIPE, text=True, check=True)
            before, after, peak, claims, took = map(float, ran.stdout.split())
            said = {"nodes": asked.nodes, "claims": int(claims)}
            report.add(f"{subject}, resident", after, "MiB", **said)
            report.add(f"{subject}, resident at most", peak, "MiB", **said)
            report.add(f"{subject}, of one claim with its guest", (after - before) * MIB / claims, "bytes", **said)
            report.add(f"{subject}, time", took, "s", **said)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=positive, default=100_000)
    parser.add_argument("--claims-per-node", type=positive, default=10)
    parser.add_argument("--measure", choices=("folded", "restored"), help=argparse.SUPPRESS)
    parser.add_argument("--snapshot", type=Path, help=argparse.SUPPRESS)


def measure(subject: str, snapshot: Path, nodes: int, claims_per_node: int) -> None:
    """In the child: MiB before, after and at most, the number of claims, seconds."""
    before = resident("VmRSS")
    began = time.perf_counter()
    if subject == "folded":
        ledger = Ledger(0, 1)
        for offset, (time_ms, key, value) in enumerate(records(nodes, claims_per_node)):
            ledger.apply(offset, time_ms, key, value)
    else:
        ledger = restored(snapshot.read_bytes())
    took = time.perf_counter() - began
    gc.collect()
    assert all(claim.confirmed_ms is not None for claim in ledger.claims.values()), "every claim has its guest"
    print(before, resident("VmRSS"), resident("VmHWM"), len(ledger.claims), took)
    if subject == "folded":
        snapshot.write_bytes(encoded(ledger))


def resident(name: str) -> float:
    """MiB of this process, as the kernel counts them (Linux only)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"/proc/self/status has no {name}: this benchmark needs Linux")


def records(nodes: int, claims_per_node: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Time, key and value of every record: one opens the partition, three a node fill it."""
    yield START_MS, b"0", encode(PartitionOpened(ledger_id="memory", partition=0, partitions=1))
    for number in range(nodes):
        node_id = f"compute-{number:06d}.example.net"
        key, time_ms = node_id.encode(), START_MS + number
        yield time_ms, key, encode(audit(node_id, 1, time_ms, ()))
        items = [item(node_id, number * claims_per_node + at) for at in range(claims_per_node)]
        request_id = items[0].claim_id.partition("/")[0]
        yield time_ms, key, encode(ClaimRequested(request_id=request_id, owner="s1", basis=3 * number, ttl_ms=600_000, items=tuple(items)))
        yield time_ms, key, encode(audit(node_id, 2, time_ms, tuple(report(each) for each in items)))


def audit(node_id: str, counter: int, time_ms: int, instances: tuple[InstanceReport, ...]) -> NodeObserved:
    return NodeObserved(
        node_id=node_id,
        producer="audits",
        epoch=START_MS,
        counter=counter,
        taken_at_ms=time_ms,
        mono_ms=time_ms - START_MS,
        digest=f"{node_id}-{counter}",
        hypervisor=HOST,
        instances=instances,
    )


def item(node_id: str, ordinal: int) -> ClaimItem:
    """Claims of one node in one request, with ids as long as real ones."""
    request_id = f"{ordinal // 10:08x}-5c1e-4a7b-9f00-000000000000"
    name = claim_id(request_id, ordinal % 10, "scheduler-1", START_MS, ordinal)
    instance_id = f"{ordinal:08x}-0000-4000-8000-{ordinal:012x}"
    return ClaimItem(claim_id=name, instance_id=instance_id, nodes=(node_id,), resources=SIZES[ordinal % 7])


def report(claim: ClaimItem) -> InstanceReport:
    size = claim.resources
    observed = ObservedResources(vcpus=size.vcpus, memory_mib=size.memory_mib, disk_mib=size.disk_mib)
    return InstanceReport(instance_id=claim.instance_id, name=f"instance-{claim.instance_id[:8]}", resources=observed)


if __name__ == "__main__":
    main()
