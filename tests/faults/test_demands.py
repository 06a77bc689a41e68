"""Schedulers and the stream processor killed and stopped while all that is more than amounts is asked for: see README.md here.

Resizes and migrations, groups, cells with pinned CPUs and pages, devices, traits, forced claims, evacuations from hosts that die, settings
that change meanwhile. The clock runs sixty times as fast as the machine's.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from pathlib import Path
from random import Random
from threading import Timer

from schemas.results import PlacementFailed
from streams.log.base import Log
from tests.faults.checkers import counting, everything_wrong, folded, requests, seen, unanswered, unnamed
from tests.faults.demanding import Demanding
from tests.faults.demanding_requests import POLICY
from tests.faults.demands import demands_wrong, not_made_again
from tests.faults.harness import SOAKS, Site, scaled_clock, site, until, until_known

HARMS = int(os.environ.get("CLAIMLOG_KILLS", "100")) if SOAKS else 8
DECISIONS = 400 if SOAKS else 40
"""Decisions that are made again at the end: each folds the log up to its cut."""
FACTOR = 60
SCHEDULERS = {"s0": "profiles", "s1": "reference", "s2": "profiles"}
PAUSE_SECONDS = (0.1, 1.2)
SLEEP_SECONDS = (0.1, 4.0)
"""How long a stopped process sleeps: also longer than its lease, which is one second, so that others take over and it wakes up a zombie."""
STEP_SECONDS = 0.02
HAPPENS = ("create placed", "create dry placed", "migrate placed", "resize placed", "reverted", "confirmed move", "refused")
REST_SECONDS = 90.0
"""Much longer than any claim may stay unconfirmed, while audits say that no guest is left."""


def start(here: Site, name: str) -> None:
    """The process of that name."""
    if name == "host":
        here.processor(name)
    else:
        here.scheduler(name, "--policy", str(here.folder / "policy.toml"), "--engine", SCHEDULERS[name])


def play(player: Demanding, seconds: float) -> None:
    """So long of the world's life."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        player.step()
        time.sleep(STEP_SECONDS)


def harm(here: Site, name: str, draw: Random, asleep: set[str]) -> str:
    """Kill the process and start it again, or stop it for a while. It is woken from a thread: it may sleep in the log's write lock."""
    if draw.random() < 0.6:
        here.processes[name].kill()
        start(here, name)
        return f"{name} killed"
    process = here.processes[name].running
    assert process is not None
    asleep.add(name)
    process.send_signal(signal.SIGSTOP)

    def wake() -> None:
        process.send_signal(signal.SIGCONT)
        asleep.discard(name)

    Timer(draw.uniform(*SLEEP_SECONDS), wake).start()
    return f"{name} stopped"


def is_at_rest(player: Demanding, log: Log) -> bool:
    """Whether every request is answered, what was placed is started or given up, and every claim that lost is given back."""
    player.step()
    return not player.is_busy and not unanswered(log, requests(log)) and not unnamed(log, folded(log))


def has_happened(player: Demanding) -> bool:
    """Whether all that is to be tried was."""
    player.step()
    return min(player.seen[each] for each in HAPPENS) > 0


def is_over(player: Demanding) -> bool:
    """Whether all guests are gone, and all claims with them."""
    player.step()
    return not (player.guests or player.held)


def test_nothing_is_given_twice_and_no_group_breaks_whatever_is_asked_for(tmp_path: Path, seed: int) -> None:
    draw, harms, asleep = Random(seed), Counter[str](), set[str]()
    (tmp_path / "policy.toml").write_text(POLICY)
    with site(tmp_path, scaled_clock(FACTOR)) as here, here.opened() as log:
        for name in ("host", *SCHEDULERS):
            start(here, name)
        player = Demanding(log, here.clock, seed)
        player.calm = True
        player.step()
        until_known(log, len(player.hosts))
        player.calm = False
        while harms.total() < HARMS:
            play(player, draw.uniform(*PAUSE_SECONDS))
            name = draw.choice(["host", *SCHEDULERS, *SCHEDULERS])
            if name not in asleep:
                harms[harm(here, name, draw, asleep)] += 1

        until(lambda: has_happened(player), REST_SECONDS, f"all of {HAPPENS}")

        player.calm = True
        until(lambda: not asleep, REST_SECONDS, "all that sleep wake up")
        looked = seen(log)
        until(lambda: is_at_rest(player, looked), REST_SECONDS, "all requests are answered and all losing claims given back")
        player.ending = True
        until(lambda: is_over(player), REST_SECONDS, "no claim is left behind")
        here.stop_all()
        here.process_to_the_end()
        fold, wrong = everything_wrong(log, here.state, [])
        wrong += player.wrong + demands_wrong(log) + not_made_again(log, DECISIONS, draw)

        answers = Counter(result.reason if isinstance(result, PlacementFailed) else "placed" for result in counting(log)[0].values())
        print(f"\nseed {seed}: {dict(sorted(harms.items()))}; {dict(sorted(answers.items()))}; {dict(sorted(player.seen.items()))}")
        assert wrong == []
        assert [claim_id for ledger in fold.ledgers for claim_id in ledger.claims] == []
