"""Two versions of claimlog on one log: side by side under the same rules; then the rules move to a version that one of them does not know.

The older is a wheel of the earliest commit that follows the rules of this tree. No version 2 of the rules exists, and one made up here must
not differ: what would it decide? So the newer is a wheel of this tree that knows one version more with the rules of the one before, which
is what every release that brings rules is until somebody sets them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from producers.load import KINDS, SimulatedFleet
from producers.source import said
from projections.rules import RULES_KNOWN
from schemas import topics
from schemas.codec import decode
from schemas.requests import Flavor, PlacementRequested
from schemas.results import InstancesPlaced, SchedulerStarted
from streams.cli.produce.driving import request_message
from streams.cli.produce.publishing import message
from streams.log.base import Log
from tests.faults import checkers, wheels
from tests.faults.harness import Process, until, until_known
from tests.faults.shared_site import PATIENCE_SECONDS, UNMISSED, SharedSite, shared_site

NEXT = max(RULES_KNOWN) + 1
UPGRADE = (
    f"the log moves to rules version {NEXT}, this claimlog knows {sorted(RULES_KNOWN)}; "
    "upgrade claimlog on this machine and start it again: it goes on from here"
)


def both(folder: Path) -> tuple[list[str], list[str], str]:
    """The commands of the older and the newer claimlog, and what the older one is."""
    commit = wheels.earliest_alike()
    older = wheels.source_of(commit, folder / "older")
    wheels.edit(older / "pyproject.toml", r'^version = "([^"]+)"$', r'version = "\1+older"')
    newer = wheels.source_of(None, folder / "newer")
    wheels.edit(newer / "pyproject.toml", r'^version = "([^"]+)"$', r'version = "\1+newer"')
    wheels.edit(newer / "projections" / "rules.py", r"^RULES_KNOWN = frozenset\(\{(.*)\}\)$", rf"RULES_KNOWN = frozenset({{\1, {NEXT}}})")
    what = "this tree itself" if commit is None else f"commit {commit[:9]}"
    return wheels.installed(older, folder / "old"), wheels.installed(newer, folder / "new"), what


class Requester:
    """Asks for instances, a few at a time, and waits for the answers."""

    def __init__(self, log: Log) -> None:
        self._log, self._numbers = log, count()

    def asks(self, requests: int = 8) -> list[InstancesPlaced]:
        """The counting results, all of which place."""
        ids = [f"r-{next(self._numbers)}" for _ in range(requests)]
        flavor = Flavor(vcpus=1, memory_mib=256)
        self._log.append([request_message(PlacementRequested(request_id=each, flavor=flavor), 1) for each in ids])
        until(lambda: set(ids) <= checkers.counting(self._log)[0].keys(), PATIENCE_SECONDS, "requests are answered")
        results = [checkers.counting(self._log)[0][each] for each in ids]
        placed = [result for result in results if isinstance(result, InstancesPlaced)]
        assert len(placed) == requests, results
        return placed

    def asks_until_each_has_placed(self, names: Sequence[str]) -> None:
        """Schedulers share the requests by partition; a new one has its share after a moment."""
        seen: set[str] = set()

        def all_have() -> bool:
            seen.update(name for result in self.asks() for name in names if result.owner.startswith(name))
            return seen == set(names)

        until(all_have, PATIENCE_SECONDS, f"each of {names} places")


def shared_out(here: SharedSite, names: Sequence[str]) -> bool:
    """Whether each of these workers has one partition, by what it said last since it was started."""
    said = [here.processes[name].said_since_start() for name in names]
    shares = [re.findall(r"^worker \w+: partitions (.*)$", each, re.MULTILINE)[-1:] for each in said]
    return sorted(share for each in shares for share in each) == ["0", "1"]


def stopped(process: Process) -> None:
    """It ends by itself, and one line says why."""
    code = process.ended(PATIENCE_SECONDS)

    said = process.said_since_start()
    assert code == 1, f"{process.name} ended with {code}: {said[-2000:]}"
    assert UPGRADE in said
    assert "Traceback" not in process.said()


def is_at_rest(log: Log) -> bool:
    fold = checkers.folded(log)
    return not checkers.unnamed(log, fold) and not checkers.verdicts_wrong(log, fold) and not checkers.rows_wrong(log, fold)


def scheduler_versions(log: Log) -> set[str]:
    """Which versions of claimlog schedulers said they are when they started."""
    events = [decode(topics.RESULTS, record.value) for record in checkers.records(log, topics.RESULTS)]
    return {event.version for event in events if isinstance(event, SchedulerStarted)}


def test_two_versions_work_side_by_side_and_the_one_that_does_not_know_new_rules_stops_and_goes_on_upgraded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer, what = both(tmp_path)
    with shared_site(tmp_path) as here, here.opened() as log:
        # Of one kind, so that requests spread over the nodes of both partitions.
        fleet, requester = SimulatedFleet(6, epoch=1, kinds=KINDS[:1]), Requester(log)
        log.append([message(said(topics.AUDITS, fleet.audit(node_id, 1_000, 1))) for node_id in fleet.nodes])

        for worker, scheduler, claimlog in (("w-old", "s-old", older), ("w-new", "s-new", newer)):
            here.worker(worker, *UNMISSED, claimlog=claimlog)
            here.scheduler(scheduler, claimlog=claimlog)
        until(lambda: shared_out(here, ("w-old", "w-new")), PATIENCE_SECONDS, "each worker has a partition")
        until_known(log, len(fleet.nodes))
        requester.asks_until_each_has_placed(("s-old", "s-new"))
        until(partial(is_at_rest, checkers.seen(log)), PATIENCE_SECONDS, "all that follows is published")
        assert checkers.digests_wrong(log, checkers.folded(log)) == []
        assert {version.rpartition("+")[2] for version in scheduler_versions(log)} == {"older", "newer"}

        moved = here.verb("rules", "set", str(NEXT), claimlog=newer)
        assert (moved.returncode, moved.stdout) == (0, f"claims/0: 1 -> {NEXT}\nclaims/1: 1 -> {NEXT}\n"), moved.stderr
        for name in ("w-old", "s-old"):
            stopped(here.processes[name])
        refused = here.verb("nodes", claimlog=older)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert UPGRADE in refused.stderr
        requester.asks()

        here.worker("w-old", *UNMISSED, claimlog=older)
        stopped(here.processes["w-old"])
        here.worker("w-old", *UNMISSED, claimlog=newer)
        here.scheduler("s-old", claimlog=newer)
        until(lambda: shared_out(here, ("w-old", "w-new")), PATIENCE_SECONDS, "each worker has a partition again")
        upgraded = log.ends(topics.CLAIMS)
        requester.asks_until_each_has_placed(("s-old", "s-new"))
        # The checkers are this tree's, and learn what the newer wheel knows.
        for module in ("projections.ledger", "projections.state"):
            monkeypatch.setattr(f"{module}.RULES_KNOWN", RULES_KNOWN | {NEXT})
        until(partial(is_at_rest, checkers.seen(log)), PATIENCE_SECONDS, "all that follows is published")
        for name in here.processes:
            here.stop(name)

        fold, wrong = checkers.everything_wrong(log, [here.home("w-old"), here.home("w-new")], [])
        print(f"\nthe older is {what}; {len(fold.outcomes)} outcomes")
        # Where the older's state has another version, a table that it kept and nobody has taken up since says nothing to this tree.
        not_taken_up = {f"w-old before the end: the table of claims/{number} is empty" for number in (0, 1)}
        assert [each for each in wrong if each not in not_taken_up] == []
        assert [ledger.rules_version for ledger in fold.ledgers] == [NEXT, NEXT]
        assert all(ledger.next_offset > upgraded[ledger.partition] for ledger in fold.ledgers), "both partitions went on"
        assert "discarded" not in here.processes["w-old"].said()
        verified = here.verb("replay", "--verify", claimlog=newer)
        assert verified.returncode == 0, verified.stdout + verified.stderr
