"""A cluster of three brokers, each of which is harmed under load: killed, silent, restarted in order, its disk lost, two lost at once.

An acknowledged record outlives any one broker, nothing is written while two are lost, and all goes on by itself. Who is harmed, when and
for how long follows from the seed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain, pairwise
from pathlib import Path
from random import Random

from msgspec import field

from schemas import topics
from streams.clock import SystemClock
from streams.log.kafka import KafkaLog
from streams.log.kafka_settings import KafkaSettings
from streams.scheduler import GROUP
from tests.faults.checkers import records
from tests.faults.harness import CLAIMLOG, SOAKS
from tests.faults.harness import site as processes
from tests.faults.kafka_world import PREFIX, World, played
from tests.kafka_broker import started
from tests.kafka_brokers import SESSION_SECONDS, Brokers

WORKERS = ("w0", "w1")
SCHEDULERS = ("s0", "s1", "s2")
LEDGER_PARTITIONS = 4
PARTITIONS = ("--ledger-partitions", str(LEDGER_PARTITIONS))
ROUNDS = 3
RESUMES_SECONDS = 60.0
"""The longest that no result may come: the session of a broker and of a member, an election, and how long two brokers are away."""
COPIES_MAX = 50
"""librdkafka sends again what has landed where a new leader refuses a batch of its (its issue 4953): what was under way."""
SETTLES = 5
"""So many more results mean that all parts get on."""


class Cluster(World, kw_only=True):
    """A world on several brokers. `harms` are what was done, and between which times."""

    brokers: Brokers
    draw: Random
    harms: list[tuple[str, int, int]] = field(default_factory=list)

    def lost(self, node: int) -> None:
        """kill -9 of one broker, which is back at once, or when the others have gone on without it."""
        self.brokers.members[node].kill()
        if self.draw.random() < 0.5:
            time.sleep(self.draw.uniform(0.0, SESSION_SECONDS))
        else:
            self.goes_on(SETTLES, "requests are answered without the broker that was killed")
        self.brokers.again(node)

    def suffers(self, harm: Harm) -> None:
        """Do it, and wait until results come again and the cluster is whole."""
        began = SystemClock().wall_ms()
        harm(self)
        self.goes_on(SETTLES, f"requests are answered after this harm: {harm.__name__}")
        self.brokers.heals()
        self.harms.append((harm.__name__, began, SystemClock().wall_ms()))

    def pauses(self) -> dict[str, float]:
        """The longest that no result came while something was done, in seconds, by what it was. The brokers run on this machine's clock."""
        times = sorted(record.time_ms for record in records(self.log, topics.RESULTS))
        longest: dict[str, float] = {}
        for name, began, over in self.harms:
            for before, after in pairwise(times):
                if began <= (before + after) // 2 <= over:
                    longest[name] = max(longest.get(name, 0.0), (after - before) / 1000)
        return longest


Harm = Callable[[Cluster], None]


def anybody(here: Cluster) -> int:
    """Any broker."""
    return here.draw.choice(sorted(here.brokers.members))


def killed(here: Cluster) -> None:
    """A broker is killed."""
    here.lost(anybody(here))


def controller_killed(here: Cluster) -> None:
    """The broker that leads the controllers is killed."""
    here.lost(here.brokers.controller())


def coordinator_killed(here: Cluster) -> None:
    """The broker that keeps the group of the workers, or that of the schedulers, is killed."""
    name = here.draw.choice(["stream-processor", f"{GROUP}.{topics.REQUESTS}.lease"])
    here.lost(here.brokers.coordinator(here.settings.group(name)))


def leader_killed(here: Cluster) -> None:
    """The broker that leads a partition of the ledger is killed."""
    here.lost(here.brokers.leader(here.settings.topic(topics.CLAIMS), here.draw.randrange(LEDGER_PARTITIONS)))


def silent(here: Cluster) -> None:
    """A broker stands still for longer than a replica may lag, its connections open, and wakes up as one who does not know it."""
    member = here.brokers.members[anybody(here)]
    member.signal(signal.SIGSTOP)
    time.sleep(SESSION_SECONDS + here.draw.uniform(1.0, 3.0))
    member.signal(signal.SIGCONT)


def emptied(here: Cluster) -> None:
    """A broker loses its disk, and starts with an empty one."""
    node = anybody(here)
    here.brokers.members[node].kill()
    time.sleep(here.draw.choice([0.0, here.draw.uniform(0.0, 2 * SESSION_SECONDS)]))
    here.brokers.replaced(node)


def two_killed(here: Cluster) -> None:
    """Two brokers are killed at once: nothing is acknowledged until one of them is back, and then all goes on."""
    first, second = here.draw.sample(sorted(here.brokers.members), 2)
    for node in (first, second):
        here.brokers.members[node].kill()
    time.sleep(here.draw.uniform(1.0, 2 * SESSION_SECONDS))
    here.brokers.again(first)
    here.goes_on(SETTLES, "requests are answered once two of three brokers are there")
    here.brokers.again(second)


def rolled(here: Cluster) -> None:
    """All are restarted in order, one after the other, as an upgrade does."""
    for node in here.draw.sample(sorted(here.brokers.members), len(here.brokers.members)):
        here.brokers.closes(node)
        here.brokers.again(node)
        here.brokers.heals()


ALL: tuple[Harm, ...] = (killed, controller_killed, coordinator_killed, leader_killed, silent, emptied, two_killed, rolled)
FEW: tuple[Harm, ...] = (coordinator_killed, silent, emptied, two_killed)
"""For one of which there is time in every run."""


@contextmanager
def cluster(folder: Path, seed: int) -> Iterator[Cluster]:
    """Three brokers with a ledger on them, made as operators make it. Skips where no broker can be had, which fails on CI."""
    with started(Brokers(folder / "brokers")) as brokers, processes(folder) as site:
        settings = KafkaSettings(bootstrap=brokers.address, prefix=PREFIX)
        made = site.start("apply", [*CLAIMLOG, "topics", "apply", "--log", settings.place, *PARTITIONS])
        assert made.ended() == 0, made.said()
        del site.processes["apply"]
        with (
            KafkaLog.open(settings) as log,
            played(Cluster(site, log, brokers.address, copies_max=COPIES_MAX, brokers=brokers, draw=Random(seed))) as here,
        ):
            yield here


def test_a_cluster_whose_brokers_are_harmed_one_after_the_other_loses_nothing_and_counts_nothing_twice(tmp_path: Path, seed: int) -> None:
    with cluster(tmp_path, seed) as here:
        begun = time.monotonic()
        for name in WORKERS:
            here.worker(name)
        for name in SCHEDULERS:
            here.scheduler(name)
        load = here.begin(seed, per_second=10.0)
        here.goes_on(10, "schedulers place")
        started_s = time.monotonic() - begun

        rounds = [here.draw.sample(ALL, len(ALL)) for _ in range(ROUNDS)] if SOAKS else [[here.draw.choice(FEW)]]
        for harm in chain.from_iterable(rounds):
            here.suffers(harm)
        harmed_s = time.monotonic() - begun - started_s
        here.comes_to_rest()
        wrong, pauses = here.wrong(WORKERS), here.pauses()

        said = {name: process.said().count("trying again") for name, process in here.site.processes.items()}
        print(
            f"\nseed {seed}: without results for {pauses} s at most; {load.tally}; {len(load.kept)} records acknowledged; out of reach: "
            f"producers {len(load.troubles)} times, {said}; {started_s:.0f} s to start, {harmed_s:.0f} s of harm, "
            f"{time.monotonic() - begun - started_s - harmed_s:.0f} s to rest and to check"
        )
        assert wrong == []
        assert max(pauses.values()) < RESUMES_SECONDS
        assert [process.starts for process in here.site.processes.values()] == [1] * len(WORKERS + SCHEDULERS)
        assert sum(here.log.ends(topics.DEAD_LETTERS).values()) == 0
