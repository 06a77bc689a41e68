"""The story of `claimlog demo`, scene by scene."""

from __future__ import annotations

import os
import random
import shlex
import signal
import sys
import time
from pathlib import Path

from projections.node import Claim
from schemas.requests import Flavor, PlacementRequested
from schemas.results import InstancesPlaced, PlacementFailed
from schemas.units import GIB
from streams.cli.demo import facts
from streams.cli.demo.stage import Stage
from streams.cli.exits import Exit
from streams.cli.printed import units
from streams.cli.printed.stdout import check_heard
from streams.operator import Stamp, release

SCHEDULERS = ("s1", "s2", "s3")
VICTIM = "s2"
BURSTS_MAX = 40
"""How often the story tries to catch a scheduler between its claims and their results: a matter of milliseconds each time."""
FILLS_MAX = 10
"""How often the story asks for a guest for each node that has none: a fleet with many large nodes leaves small ones empty."""
SHARE_SECONDS = 0.6
"""Until the schedulers have shared the requests out among themselves: each hears of the others when it renews its lease."""


def say(line: str = "") -> None:
    """One line of the story, at once."""
    print(line, flush=True)
    check_heard(sys.stdout)


class Story:
    """The demonstration, scene by scene. Each scene ends with a sentence about what the log says happened."""

    def __init__(self, stage: Stage, rng: random.Random) -> None:
        self._stage, self._rng = stage, rng
        self._before_ms = 0
        self._asked = 0
        self._failures: list[str] = []
        self._commands: list[str] = []

    def play(self) -> None:
        """All scenes in order."""
        self._report()
        self._place()
        self._kill()
        leaking = self._leak()
        refused = self._refuse(leaking)
        self._explain(leaking, refused)
        self._heal(leaking, refused)
        self._replay(leaking)

    def end(self, began: float) -> int:
        """The last words, and the exit code."""
        say("\nTry these on the log that this left:")
        for command in self._commands:
            say(f"  {command}")
        seconds = time.monotonic() - began
        if self._failures:
            say(f"\nNot all of it held, after {seconds:.0f} s: " + "; ".join(self._failures))
            return Exit.ERROR
        say(f"\nAll of it held, in {seconds:.0f} s.")
        return 0

    def _report(self) -> None:
        stage = self._stage
        stage.start("processor", "processor")
        for name in SCHEDULERS:
            stage.start(name, "scheduler")
        stage.append(facts.zones(stage))
        stage.until("the first audit of every hypervisor", lambda: facts.audited(stage) == len(stage.fleet.nodes))
        stage.until("all schedulers to start", lambda: stage.schedulers >= set(SCHEDULERS))
        stage.pause(SHARE_SECONDS)
        vcpus, memory_gib = facts.total(stage, "vcpus"), facts.total(stage, "memory_mib") // GIB
        say(f"\n1. Hypervisors report: {facts.audited(stage)} nodes, {vcpus} vCPUs, {memory_gib} GiB. Time runs 60 times as fast as yours.")

    def _place(self) -> None:
        """A wave of requests, then a rush of equal ones; then more, until no node is empty: its room would hide what the leak takes."""
        stage = self._stage
        wave = [self._request(self._rng.choice((2, 4, 8, 8, 16)), count=self._rng.choice((1, 1, 1, 2, 3))) for _ in range(45)]
        wave += [self._request(2, zone="north"), self._request(2048)]
        started = time.monotonic()
        stage.ask(wave)
        stage.until("a result of every request", stage.answered)
        stage.ask([self._request(10) for _ in range(14)])
        stage.until("a result of every request", stage.answered)
        for _ in range(FILLS_MAX):
            if not (empty := facts.empty(stage)):
                break
            stage.ask([self._request(16) for _ in empty])
            stage.until("a result of every request", stage.answered)
        seconds = time.monotonic() - started
        stage.until("the guests to be seen by audits", lambda: not facts.unconfirmed(stage))
        tally = stage.tally
        say(
            f"2. {self._asked} requests published to a topic, {seconds:.1f} s until all were answered: {tally.placed} placed, "
            f"{tally.failed} refused; {tally.granted} claims granted, {tally.over_committed} over-committed."
        )

    def _kill(self) -> None:
        """Stop a scheduler as soon as its claims appear; if their results have not, kill it, else let it go on and try again."""
        stage = self._stage
        for _ in range(BURSTS_MAX):
            stage.ask([self._request(1) for _ in range(6)])
            deadline = time.monotonic() + 0.5
            while not (left := stage.in_flight(VICTIM)) and time.monotonic() < deadline:
                pass
            if left:
                stage.signal(VICTIM, signal.SIGSTOP)
                time.sleep(0.01)
                if left := stage.in_flight(VICTIM):
                    break
                stage.signal(VICTIM, signal.SIGCONT)
            stage.until("a result of every request", stage.answered)
        else:
            self._failures.append(f"{VICTIM} was never caught with claims in flight")
            return
        stage.killed(VICTIM)
        stage.until("the others to finish what it left", stage.answered)
        stage.until("its claims to be released", lambda: not facts.unnamed(stage))
        finished = sorted({stage.results[claim.request_id].owner for claim in left})
        tally = stage.tally
        say(
            f"3. {VICTIM} killed (SIGKILL) with {facts.counted(len(left), 'claim')} in flight: finished by {' and '.join(finished)}, "
            f"{tally.placed_twice} placed twice, {facts.counted(len(facts.unnamed(stage)), 'claim')} left behind."
        )
        say(
            f"   So far {tally.granted + tally.refused} claims, {tally.met_conflict} met a conflict: {tally.by_alternate} took an "
            f"alternate in the same record, {tally.decided_again} had to be decided again. Over-committed: {tally.over_committed}."
        )
        self._check(tally.over_committed == 0, "no node is over-committed")
        self._check(tally.placed_twice == 0 and VICTIM not in finished, "what the killed scheduler left is finished once, by others")
        stage.start(VICTIM, "scheduler")

    def _leak(self) -> Claim:
        """Destroy a guest without a word: the one whose room would let in the largest request."""
        stage = self._stage
        stage.until("claims, life cycles and audits to agree", lambda: not facts.unconfirmed(stage) and not facts.gaps(stage))
        leaking = facts.best_leak(stage)
        self._before_ms = stage.clock.wall_ms()
        stage.fleet.destroy(leaking.instance_id, stage.clock.wall_ms(), silently=True)
        stage.until("the leak audit to confirm it", lambda: any(f.instance_id == leaking.instance_id for _, f in stage.findings))
        return leaking

    def _refuse(self, leaking: Claim) -> PlacementRequested:
        """Ask for what would fit if the leak were not."""
        stage = self._stage
        refused = self._request((facts.free_mib(stage, leaking.node_id) + leaking.amounts[2]) // GIB)
        stage.ask([refused])
        stage.until("its result", stage.answered)
        self._check(isinstance(stage.results[refused.request_id], PlacementFailed), "the large request is refused")
        return refused

    def _explain(self, leaking: Claim, refused: PlacementRequested) -> None:
        say("\n4. The fleet. Somebody destroyed a guest without telling anybody; one line does not add up:\n")
        self._run("nodes", "--at", self._now())
        say(f"\n5. A request for {refused.flavor.memory_mib // GIB} GiB was refused. Why, in numbers that add up:\n")
        self._run("explain", refused.request_id, expect=4)
        say("\n6. What leaks there, event by event, and which event is missing:\n")
        self._run("leaks", "--node", leaking.node_id, "--explain", "--at", self._now(), expect=3)

    def _heal(self, leaking: Claim, refused: PlacementRequested) -> None:
        stage = self._stage
        say(f"\n7. Heal it: $ claimlog claims release {leaking.claim_id} --reason deleted")
        stamp = Stamp(f"demo-release/{leaking.claim_id}", stage.clock.wall_ms())
        stage.append([release(leaking.claim_id, leaking.node_id, stamp, reason="deleted", note="demo: the guest is gone")])
        stage.until("the finding to be resolved", lambda: facts.resolved(stage, leaking))
        again = self._request(refused.flavor.memory_mib // GIB)
        stage.ask([again])
        stage.until("its result", stage.answered)
        result = stage.results[again.request_id]
        placed = result.placements[0].node_id if isinstance(result, InstancesPlaced) else "nowhere"
        say(f"   The finding is resolved, and {again.flavor.memory_mib // GIB} GiB asked for again are placed on {placed}.")
        self._check(placed == leaking.node_id, "the refused request is placed where the leak was")
        stage.until("claims, life cycles and audits to agree", lambda: not facts.unconfirmed(stage) and not facts.gaps(stage))

    def _replay(self, leaking: Claim) -> None:
        stage = self._stage
        stage.stop()
        say("\n8. Replay the log from its first record; same tables, same digests as every process published:\n")
        self._run("replay", "--verify")
        say("\n9. And the leaking node as it was just before the leak, when nothing was wrong:\n")
        self._run("nodes", leaking.node_id, "--at", units.moment(self._before_ms))
        self._check(facts.gap_at(stage, leaking, self._before_ms) == 0, "the gap was 0 before the leak")

    def _request(self, memory_gib: int, *, count: int = 1, zone: str = "") -> PlacementRequested:
        self._asked += 1
        vcpus = 1 + memory_gib // 8 if memory_gib <= 16 else 1
        flavor = Flavor(name=f"m{memory_gib}", vcpus=vcpus, memory_mib=memory_gib * GIB, root_gib=10)
        return PlacementRequested(request_id=f"demo-{self._asked:03d}", flavor=flavor, count=count, availability_zone=zone)

    def _run(self, verb: str, *arguments: str, expect: int = 0) -> None:
        """Show a command and run it; it stands among those to paste at the end."""
        from streams.cli.main import run

        words = [verb, *arguments]
        text = shlex.join(words)
        self._commands.append(f"{shlex.quote(program())} {text} --log {shlex.quote(self._stage.spec)}")
        say(f"$ claimlog {text}")
        code = run([*words, "--log", self._stage.spec])
        sys.stderr.flush()
        self._check(code == expect, f"`claimlog {verb}` exits {expect}, it exited {code}")

    def _now(self) -> str:
        return units.moment(self._stage.clock.wall_ms())

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            self._failures.append(f"expected that {what}")


def program() -> str:
    """How the reader can call claimlog from here."""
    called = Path(sys.argv[0])
    return os.path.relpath(called) if called.name == "claimlog" and called.exists() else "claimlog"
