"""A log that moves to rules which this version does not know stops everybody who reads it, and says what to upgrade."""

from __future__ import annotations

from pathlib import Path

import pytest

from producers.load import SimulatedFleet
from producers.source import said
from projections.rules import RULES_KNOWN
from schemas.claims import RulesChanged
from schemas.codec import encode
from schemas.topics import AUDITS, CLAIMS
from streams.cli.produce.publishing import message
from streams.ledger_topics import own_key
from streams.log.base import Log, Message
from tests.faults.harness import Process, site, until_known

NEXT = max(RULES_KNOWN) + 1
UPGRADE = f"the log moves to rules version {NEXT}, this claimlog knows {sorted(RULES_KNOWN)}; upgrade claimlog on this machine"


def move_the_rules(log: Log, version: int) -> None:
    """What `claimlog rules set` of a newer version would write, into every partition."""
    partitions = log.topics()[CLAIMS]
    event = RulesChanged(record_id=f"rules-{version}", rules_version=version)
    log.append([Message(CLAIMS, own_key(number, partitions), encode(event), (), number) for number in range(partitions)])


def audited(log: Log) -> None:
    """A fleet with some nodes in each partition."""
    fleet = SimulatedFleet(6, epoch=1)
    log.append([message(said(AUDITS, fleet.audit(node_id, 1_700_000_000_000, 1))) for node_id in fleet.nodes])


def stopped(process: Process) -> None:
    """It ends, not with 0, and one line says why."""
    code = process.ended()

    assert code == 1, f"{process.name} ended with {code}: {process.said()}"
    assert UPGRADE in process.said()
    assert "Traceback" not in process.said()


def test_rules_unknown_here_stop_whoever_runs_and_whoever_asks(tmp_path: Path) -> None:
    with site(tmp_path) as here, here.opened() as log:
        audited(log)
        running = [here.processor(), here.scheduler("s0"), here.start("both", here.run_command("both", "--state", str(tmp_path / "both")))]
        until_known(log, 6)
        here.wait(0.5)

        move_the_rules(log, NEXT)

        for process in running:
            stopped(process)
        for name in ("host", "s0"):
            here.processes[name].start()
            stopped(here.processes[name])


@pytest.mark.parametrize("verb", [["nodes"], ["replay"], ["replay", "--verify"], ["claims", "list"], ["leaks"]], ids=" ".join)
def test_rules_unknown_here_leave_no_number_to_an_answer(tmp_path: Path, verb: list[str]) -> None:
    with site(tmp_path) as here, here.opened() as log:
        audited(log)
        here.process_to_the_end()
        move_the_rules(log, NEXT)

        answer = here.verb(*verb)

        assert (answer.returncode, answer.stdout) == (1, "")
        assert UPGRADE in answer.stderr
        assert "Traceback" not in answer.stderr


def test_a_step_beyond_the_next_version_moves_nothing_and_stops_nobody(tmp_path: Path) -> None:
    with site(tmp_path) as here, here.opened() as log:
        audited(log)
        move_the_rules(log, NEXT + 1)

        here.process_to_the_end()

        answer = here.verb("nodes", "-o", "json")
        assert answer.returncode == 0, answer.stderr
        assert answer.stdout.count('"node_id"') == 6
