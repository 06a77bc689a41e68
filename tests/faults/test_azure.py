"""A real cloud's VMs through the whole system: the first of the Azure extract on 500 nodes, two schedulers and a stream processor."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from producers.load import SimulatedFleet
from producers.source import said
from producers.traces import trace
from schemas.topics import AUDITS, CLAIMS, REQUESTS, RESULTS
from streams.cli.produce.publishing import message
from tests.faults.checkers import everything_wrong, limits, records
from tests.faults.cloud import KINDS, Cloud, data
from tests.faults.harness import site, until_known
from tests.faults.history import Recorded, at_rest, history_wrong, read_history

VMS = 10_000
NODES = 500


@pytest.mark.timeout(600)
def test_the_first_vms_of_a_real_cloud_are_all_answered_and_never_over_a_node(tmp_path: Path, seed: int) -> None:
    folder = data()
    with site(tmp_path) as here, here.opened(ledger_partitions=4) as log:
        fleet = SimulatedFleet(NODES, seed=seed, epoch=1, kinds=KINDS)
        log.append([message(said(AUDITS, fleet.audit(node_id, 1, 1))) for node_id in fleet.nodes])
        here.processor()
        until_known(log, NODES)
        here.scheduler("s0")
        here.scheduler("s1")
        cloud = Cloud(Recorded(log, tmp_path, "cloud"), trace(folder, seed=seed, instances=VMS))

        begun = time.monotonic()
        cloud.play()
        took_seconds = time.monotonic() - begun

        here.all_must_run()
        here.stop_all()
        here.process_to_the_end()
        fold, wrong = everything_wrong(log, here.state, cloud.kept)
        rest = at_rest(each for topic in (REQUESTS, RESULTS, CLAIMS) for each in records(log, topic))
        wrong += history_wrong(read_history(tmp_path), rest, limits(fold), [REQUESTS])
        verified = here.verb("replay", "--verify")
        print(
            f"\nseed {seed}: {VMS} VMs on {NODES} nodes: {cloud.accepted} accepted, {cloud.refused} refused, {cloud.released} ended, "
            f"in {took_seconds:.1f} s; outcomes {dict(sorted(fold.kinds().items()))}\n{verified.stderr.strip()}"
        )
        assert wrong == []
        assert cloud.accepted + cloud.refused == VMS
        assert min(cloud.accepted - VMS // 2, cloud.refused) > 0, "the fleet is too small, or so large that nothing is refused"
        assert cloud.released == cloud.accepted
        assert sum(len(ledger.claims) for ledger in fold.ledgers) == 0, "every VM ended, yet something is held"
        assert (verified.returncode, "verified: two folds are equal" in verified.stderr) == (0, True), verified.stderr
