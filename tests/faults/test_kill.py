"""`kill -9` of the stream processor, one of three schedulers and the producers, under load, at seeded moments: see README.md here.

The clock runs sixty times as fast as the machine's, so that claims expire, guests end and nodes fall silent while it lasts.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

import msgspec

from schemas.results import PlacementFailed
from schemas.topics import AUDITS, CLAIMS, LIFECYCLE, REQUESTS, RESULTS
from streams.log.base import Log
from tests.faults.checkers import (
    Acknowledged,
    Folded,
    counting,
    everything_wrong,
    folded,
    limits,
    records,
    requests,
    seen,
    unanswered,
    unnamed,
)
from tests.faults.harness import SOAKS, Site, scaled_clock, site, until, until_known
from tests.faults.history import at_rest, history_wrong, read_history
from tests.faults.player import NODES

KILLS = int(os.environ.get("CLAIMLOG_KILLS", "100")) if SOAKS else 5
FACTOR = 60
SCHEDULERS = ("s0", "s1", "s2")
PAUSE_SECONDS = (0.2, 1.6)
"""Between two kills: from before a process is up again to when it has work in flight."""
REST_SECONDS = 60.0
EXPIRY_SECONDS = 12.0
"""Of real time: longer than a claim may stay unconfirmed, while its host's audits say that it has no guest."""


def start(here: Site, name: str, seed: int) -> None:
    """The process of that name: the stream processor, a scheduler, or the producers."""
    if name == "host":
        here.processor(name)
    elif name == "producers":
        here.start(name, [sys.executable, "-m", "tests.faults.player", str(here.folder), str(here.clock), str(seed)])
    else:
        here.scheduler(name)


def victims(draw: Random) -> list[str]:
    """Who is killed, in order: each kind early on, then whoever the seed says."""
    first = ["host", draw.choice(SCHEDULERS), "producers", "host", draw.choice(SCHEDULERS)]
    draw.shuffle(first)
    return [*first, *(draw.choice(["host", "producers", *SCHEDULERS]) for _ in range(KILLS - len(first)))][:KILLS]


def acknowledged(folder: Path) -> list[Acknowledged]:
    """What the producers know to be in the log."""
    return [msgspec.json.decode(line, type=Acknowledged) for line in (folder / "acknowledged.jsonl").read_bytes().splitlines()]


def is_at_rest(log: Log) -> bool:
    """Whether every request is answered and every claim that lost is given back."""
    return not unanswered(log, requests(log)) and not unnamed(log, folded(log))


def recorded_wrong(log: Log, folder: Path, fold: Folded) -> list[str]:
    """What the producers' history shows to be wrong; only they write requests."""
    rest = at_rest(each for topic in (AUDITS, LIFECYCLE, REQUESTS, CLAIMS, RESULTS) for each in records(log, topic))
    return history_wrong(read_history(folder), rest, limits(fold), [REQUESTS])


def test_kill_9_of_any_process_under_load_loses_nothing_and_leaves_nothing_behind(tmp_path: Path, seed: int) -> None:
    draw = Random(seed)
    with site(tmp_path, scaled_clock(FACTOR)) as here, here.opened() as log:
        for name in ("host", *SCHEDULERS, "producers"):
            start(here, name, seed)
        # What is killed again before it is up has nothing to lose: on a busy machine that may be all that happens.
        until_known(log, NODES)
        until(lambda: sum(log.ends(REQUESTS).values()) > 50, 30.0, "the producers ask for something")
        pauses = Random(seed + 1)
        for victim in victims(draw):
            here.wait(pauses.uniform(*PAUSE_SECONDS))
            here.processes[victim].kill()
            start(here, victim, seed)

        here.wait(2.0)
        (tmp_path / "calm").touch()
        looked = seen(log)
        until(lambda: is_at_rest(looked), REST_SECONDS, "all requests are answered and all losing claims given back")
        if SOAKS:
            here.wait(EXPIRY_SECONDS)
        here.stop_all()
        here.process_to_the_end()
        kept = acknowledged(tmp_path)
        fold, wrong = everything_wrong(log, here.state, kept)
        wrong += recorded_wrong(log, tmp_path, fold)
        verified = here.verb("replay", "--verify")

        told = tally(log, here)
        print(f"\nseed {seed}: {told}; outcomes {dict(sorted(fold.kinds().items()))}; {len(kept)} records acknowledged")
        assert wrong == []
        assert (verified.returncode, verified.stderr[-500:]) == (0, verified.stderr[-500:])
        assert sum(process.kills for process in here.processes.values()) == KILLS
        kinds = fold.kinds()
        happened = ("granted", "confirmed", "renewed", "deleted", *(("refused", "in-use", "expired", "vanished") if SOAKS else ()))
        assert min(kinds[each] for each in happened) > 0, kinds
        asked = {each for each in kept if each.topic == REQUESTS}
        assert len(asked) > 5 * KILLS, "there was hardly any load"


def test_stream_processors_that_share_the_tables_take_over_from_each_other(tmp_path: Path, seed: int) -> None:
    draw = Random(seed)
    with site(tmp_path, scaled_clock(FACTOR)) as here, here.opened(ledger_partitions=4) as log:
        here.processor("left")
        here.processor("right")
        for name in ("s0", "producers"):
            start(here, name, seed)
        until_known(log, NODES)
        until(lambda: sum(log.ends(REQUESTS).values()) > 20, 30.0, "the producers ask for something")
        for victim in [draw.choice(["left", "right"]) for _ in range(KILLS // 2)]:
            here.wait(draw.uniform(*PAUSE_SECONDS))
            here.processes[victim].kill()
            # Longer than the lease: the other one has to take the tables over, and to give some back when this one returns.
            time.sleep(draw.uniform(0.5, 2.5))
            here.processor(victim)

        (tmp_path / "calm").touch()
        looked = seen(log)
        until(lambda: is_at_rest(looked), REST_SECONDS, "all requests are answered and all losing claims given back")
        here.stop_all()
        here.process_to_the_end()
        fold, wrong = everything_wrong(log, here.state, acknowledged(tmp_path))
        wrong += recorded_wrong(log, tmp_path, fold)

        print(f"\nseed {seed}: {tally(log, here)}")
        assert wrong == []
        assert sum(process.kills for process in here.processes.values()) == KILLS // 2


def tally(log: Log, here: Site) -> str:
    """What happened, in a line."""
    answers = Counter(result.reason if isinstance(result, PlacementFailed) else "placed" for result in counting(log)[0].values())
    kills = {name: process.kills for name, process in here.processes.items() if process.kills}
    return f"kills {kills}; {len(requests(log))} requests: {dict(sorted(answers.items()))}"
