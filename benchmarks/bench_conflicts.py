"""How many claims are refused because other schedulers were faster, by number of schedulers, policy, rate and lag?

Real schedulers on a log in memory under a simulated clock, so that the machine's speed has no part in it: requests come at random moments
at a steady rate, every scheduler takes a turn each millisecond in random order, and sees what anybody appended, itself included, `lag_ms`
later. A claim is lost if it is refused and has to be decided again; one that is granted on an alternate of its own record costs nothing.
Beside each policy stands the same without alternates. Nodes take `guests_per_node` guests each, the fewer the more often one fills up in
the middle of a race; in the end about two thirds of the fleet's memory is in use.

Run `python -m benchmarks.bench_conflicts [--json] [--schedulers N …] [--rate N] [--lag MS …] [--guests N …] [--requests N]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from itertools import product
from random import Random
from typing import Any

from msgspec.structs import replace

from benchmarks.bench_end_to_end import message, request
from benchmarks.report import Report, arguments, positive
from schemas.claims import NodeObserved
from schemas.inventory import Hypervisor
from schemas.topics import CLAIMS, REQUESTS, RESULTS
from streams.log.base import Log, Record, TopicSpec
from streams.log.memory import MemoryLog
from streams.scheduler import Clocks, Scheduler
from streams.scheduling.policy import POLICIES, Policy

POLICIES_SHOWN = ("pack", "spread")
CLAIMS_PARTITIONS, REQUEST_PARTITIONS = 8, 8
START_MS = 1_700_000_000_000
SETTLE_MS = 20_000
"""Longest wait, of simulated time, for the first share of the partitions and for the last answer."""


class Simulated:
    """The clock of one run."""

    def __init__(self) -> None:
        self.now_ms = START_MS

    def wall(self) -> int:
        return self.now_ms

    def boot(self) -> int:
        return self.now_ms - START_MS


class Lagged:
    """The log as one scheduler sees it: records show `lag_ms` after they were appended."""

    def __init__(self, log: Log, clock: Simulated, lag_ms: int) -> None:
        self._log, self._clock, self._lag_ms = log, clock, lag_ms

    def read(self, topic: str, partition: int, offset: int, limit: int = 1000) -> Sequence[Record]:
        seen_ms = self._clock.now_ms - self._lag_ms
        found = self._log.read(topic, partition, offset, limit)
        return [record for record in found if record.time_ms <= seen_ms]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def main() -> None:
    asked = arguments(__doc__ or "", add)
    with Report("conflicts", as_json=asked.json) as report:
        for lag_ms, guests, name, schedulers in product(asked.lag, asked.guests, POLICIES_SHOWN, asked.schedulers):
            parameters = {"policy": name, "schedulers": schedulers, "rate": asked.rate, "lag_ms": lag_ms, "guests_per_node": guests}
            figures = run(POLICIES[name], schedulers, asked.rate, lag_ms, guests, asked.requests)
            report.add("claims lost", 100 * figures["conflicts"] / figures["claims"], "%", **parameters)
            report.add("granted on an alternate", 100 * figures["alternates"] / figures["claims"], "%", **parameters)
            figures = run(replace(POLICIES[name], alternates_max=0), schedulers, asked.rate, lag_ms, guests, asked.requests)
            report.add("claims lost without alternates", 100 * figures["conflicts"] / figures["claims"], "%", **parameters)


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--schedulers", type=positive, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--rate", type=positive, default=1_000)
    parser.add_argument("--lag", type=int, nargs="+", default=[2, 10])
    parser.add_argument("--guests", type=positive, nargs="+", default=[6])
    parser.add_argument("--requests", type=positive, default=2_000)


def run(policy: Policy, schedulers: int, rate: int, lag_ms: int, guests: int, requests: int) -> Mapping[str, int]:
    """Answer all requests; what the schedulers counted together."""
    nodes = requests * 4 // (3 * guests)
    clock, rng = Simulated(), Random(f"{schedulers}/{rate}/{lag_ms}")
    topics = [TopicSpec(CLAIMS, CLAIMS_PARTITIONS), TopicSpec(REQUESTS, REQUEST_PARTITIONS), TopicSpec(RESULTS, REQUEST_PARTITIONS)]
    log = MemoryLog(topics, clock.wall)
    log.append([message(CLAIMS, host(number, guests)) for number in range(nodes)])
    clock.now_ms += 1_000
    clocks = Clocks(clock.wall, clock.boot)
    seen: Any = Lagged(log, clock, lag_ms)
    crew = [Scheduler(seen, f"s{number}", policy, "profiles", clocks=clocks) for number in range(schedulers)]
    share(crew, clock)
    sent, due = 0, 0.0
    begun_ms = clock.now_ms
    while sum(answered(each) for each in crew) < requests:
        while sent < requests and due <= clock.now_ms - begun_ms:
            log.append([message(REQUESTS, request(f"r{sent}", rng.randrange(4)))])
            sent += 1
            due += rng.expovariate(rate / 1000)
        for each in rng.sample(crew, len(crew)):
            each.turn()
        clock.now_ms += 1
        assert clock.now_ms - begun_ms < requests * 1000 / rate + SETTLE_MS, "the schedulers do not answer all requests"
    counters = [each.placer.counters for each in crew]
    return {
        "claims": sum(each.claims for each in counters),
        "conflicts": sum(each.conflicts for each in counters),
        "alternates": sum(each.alternates_used for each in counters),
    }


def host(number: int, guests: int) -> NodeObserved:
    """A host for about so many guests, of 5 GiB and 2.5 vCPUs on average; each third is larger by a half."""
    size = guests + (guests // 2 if number % 3 == 0 else 0)
    has = Hypervisor(vcpus=4 * size, memory_mib=5 * 1024 * size, disk_mib=8_000_000)
    return NodeObserved(
        node_id=f"hv-{number:05}", producer=f"audits {number}", epoch=1, counter=1, taken_at_ms=1, mono_ms=1, hypervisor=has, instances=()
    )


def share(crew: Sequence[Scheduler], clock: Simulated) -> None:
    """Turn until every scheduler has its share of the requests."""
    until_ms = clock.now_ms + SETTLE_MS
    while sorted(len(each.partitions) for each in crew) != sorted(REQUEST_PARTITIONS // len(crew) for _ in crew):
        assert clock.now_ms < until_ms, "the schedulers do not come to share the requests evenly"
        for each in crew:
            each.turn()
        clock.now_ms += 10


def answered(scheduler: Scheduler) -> int:
    counters = scheduler.placer.counters
    return counters.placed + sum(counters.failed.values())


if __name__ == "__main__":
    main()
