"""Workers and schedulers that come and go while requests flow: 20 seconds of it, two minutes in a soak. At rest all adds up."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from random import Random

from schemas import topics
from tests.faults.harness import SOAKS, until
from tests.faults.kafka_world import World, world
from tests.faults.shared_site import PATIENCE_SECONDS as SHARED_PATIENCE_SECONDS
from tests.faults.shared_site import launcher, shared_site

LOAD_SECONDS = 120.0 if SOAKS else 20.0
PAUSE_SECONDS = (0.5, 3.0)
WORKERS = ("w0", "w1", "w2")
SCHEDULERS = ("s0", "s1", "s2")
STAYS = frozenset({"w0", "s0"})
"""Somebody has to do the work."""


def joins(here: World, name: str) -> None:
    """Start the process of that name."""
    if name in WORKERS:
        here.worker(name)
    else:
        here.scheduler(name)


def leaves(here: World, name: str) -> None:
    """Stop it with SIGTERM."""
    here.site.processes[name].must_stop()


def test_workers_and_schedulers_that_come_and_go_under_load_change_nothing_that_counts(tmp_path: Path, seed: int) -> None:
    draw, moves = Random(seed), Counter[str]()
    with world(tmp_path, seed) as here:
        for name in sorted(STAYS):
            joins(here, name)
        load = here.begin(seed)
        here.goes_on(10, "the first scheduler places")

        end = time.monotonic() + LOAD_SECONDS
        while time.monotonic() < end:
            name = draw.choice(sorted({*WORKERS, *SCHEDULERS} - STAYS))
            process = here.site.processes.get(name)
            if process is None or process.running is None:
                joins(here, name)
                moves["joined"] += 1
            else:
                leaves(here, name)
                moves["left"] += 1
            time.sleep(draw.uniform(*PAUSE_SECONDS))
        here.goes_on(10, "requests are answered after all that")
        here.comes_to_rest()

        wrong = here.wrong([name for name in WORKERS if here.home(name).exists()])
        print(f"\nseed {seed}: {dict(moves)}; {load.tally}; {len(load.kept)} records acknowledged")
        assert wrong == []
        assert moves["joined"] > 1
        assert moves["left"] > 0
        assert load.troubles == []


def test_a_worker_that_is_told_to_end_while_it_starts_does(tmp_path: Path) -> None:
    """The signal comes just before the worker listens for signals itself."""
    with shared_site(tmp_path) as here, here.opened():
        told = launcher(
            tmp_path,
            "import os, signal, streams.app",
            "begin = streams.app.FaustHost.run",
            "def run(host):",
            "    os.kill(os.getpid(), signal.SIGTERM)",
            "    begin(host)",
            "streams.app.FaustHost.run = run",
        )

        process = here.worker("w", claimlog=told)

        assert process.ended(SHARED_PATIENCE_SECONDS) == 0, process.said()
        assert "partitions" not in process.said()


def test_a_worker_whose_client_knows_only_brokers_that_are_gone_says_so_seldom_and_ends(tmp_path: Path) -> None:
    """Where two of three brokers were away and the third goes when they are back: Faust's client does not look at the address again."""
    gone = tmp_path / "gone"
    with shared_site(tmp_path) as here, here.opened() as log:
        lost = launcher(
            tmp_path,
            "import pathlib, threading, time, aiokafka.client, aiokafka.errors, streams.watchdog",
            f"gone = pathlib.Path({str(gone)!r})",
            "send = aiokafka.client.AIOKafkaClient.send",
            "async def to_nobody(client, *given, **named):",
            "    if gone.exists():",
            "        raise aiokafka.errors.NodeNotReadyError('node id 3')",
            "    return await send(client, *given, **named)",
            "aiokafka.client.AIOKafkaClient.send = to_nobody",
            "def hasten():",
            "    while not gone.exists():",
            "        time.sleep(0.1)",
            "    streams.watchdog.JOIN_SECONDS = 5.0",
            "threading.Thread(target=hasten, daemon=True).start()",
        )
        process = here.worker("w", claimlog=lost)
        until(lambda: "partitions 0, 1" in process.said(), SHARED_PATIENCE_SECONDS, "it has its share")
        said_before = len(process.said())
        gone.touch()
        code = process.ended(SHARED_PATIENCE_SECONDS)

        said = process.said()[said_before:].splitlines()
        assert code == 1, process.said()
        assert "the group was out of reach for" in said[-1]
        assert 1 < len(said) < 20, "the same is said again and again"
        assert sum(log.ends(topics.DEAD_LETTERS).values()) == 0
