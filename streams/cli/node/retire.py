"""`claimlog node retire`: the policy on nodes that nobody reports any more, said by a person or by a timer, and never applied unsaid.

A node's silence is a finding and changes nothing by itself; Nova deletes such compute nodes in the audit of whoever reports the others.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

from cyclopts import Parameter
from msgspec import structs

from projections.node import Node
from schemas.topics import CLAIMS
from streams.cli.flags import SHOW, LogFlag, Show
from streams.cli.fresh import Fresh, telling_what_stands
from streams.cli.given.units_in import duration_ms
from streams.cli.printed import units
from streams.cli.printed.output import Column, Report
from streams.cli.printed.printable import teller
from streams.cli.problems import UsageProblem
from streams.cli.reading.open_log import opened
from streams.cli.reading.state import State
from streams.cli.writing import check_writable, new_stamp
from streams.clock import wall_clock_ms
from streams.log.base import Log, Position
from streams.operator import configure

RETIRED, RETIRABLE, IN_USE = "retired", "to be retired", "in use: move or release what is there, or withdraw it by name"
COLUMNS = [
    Column(name="node_id", title="node"),
    Column(name="unheard_ms", title="not heard of for", shown=units.span, right=True),
    Column(name="instances", right=True),
    Column(name="claims", right=True),
    Column(name="what"),
]


def retire(
    *,
    unheard_for: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="How long a node's audits must have had no answer, or been missing: 7d, 12h.")
    ],
    yes: Annotated[bool, Parameter(negative=(), help="Write it; without, it is only said.")] = False,
    log: LogFlag = None,
    output: Show = SHOW,
) -> int:
    """Withdraw the nodes that nobody has heard of for long, if nothing is held or was last seen there.

    It is measured up to the newest record of the ledger: where all is off, no node is missed. Exits 3 if there are nodes that it would
    withdraw and --yes was not given.
    """
    length_ms = duration_ms(unheard_for)
    if not length_ms:
        raise UsageProblem(f"--unheard-for {unheard_for}: every node is unheard of for no time; expected a time such as 7d")
    report = Report(columns=COLUMNS, items=(), like=_said("", 0, 0, 0, ""))
    output.check(report)
    with opened(log) as source:
        if yes:
            check_writable(source)
        fresh = Fresh(source, teller(sys.stderr), views=False)
        state = fresh.loaded
        # Whoever asks by a clock that is ahead has heard of nobody for long: a node's silence counts while others are heard.
        now_ms = min(wall_clock_ms(), max(ledger.time_ms for ledger in state.ledgers.values()))
        items = [item for node_id in state.node_ids() if (item := _item(source, state, node_id, now_ms, length_ms))]
        done: list[dict[str, Any]] = []
        with telling_what_stands(output, lambda: structs.replace(report, items=done, cut=state.cut)):
            for item in items if yes else ():
                done += _retired(source, fresh, item, now_ms, length_ms, f"not heard of for {unheard_for.strip()}")
    output.write(structs.replace(report, items=done if yes else items, cut=state.cut))
    return 3 if any(item["what"] == RETIRABLE for item in items) and not yes else 0


def _retired(log: Log, fresh: Fresh, item: dict[str, Any], now_ms: int, length_ms: int, reason: str) -> list[dict[str, Any]]:
    """Withdraw a node that may be, as it is by now: it, and nothing if it has been heard of meanwhile."""
    node_id = item["node_id"]
    again = _item(log, fresh.now(node_id), node_id, now_ms, length_ms)
    if again is None or again["what"] != RETIRABLE:
        return [] if again is None else [again]
    fresh.write([configure(node_id, new_stamp(), status="withdrawn", reason=reason)])
    return [again | {"what": RETIRED}]


def _item(log: Log, state: State, node_id: str, now_ms: int, length_ms: int) -> dict[str, Any] | None:
    """What the policy says of one node; None if it says nothing: heard of lately, never reported at all, or withdrawn already."""
    node = state.node(node_id)
    heard_ms = None if node is None else _heard_ms(node)
    if node is None or heard_ms is None or node.status == "withdrawn" or now_ms - heard_ms < length_ms:
        return None
    heard_ms = max(heard_ms, _came_ms(log, state, node))
    if now_ms - heard_ms < length_ms:
        return None  # It reports, and its clock is wrong.
    claims = sum(1 for _ in node.held())
    what = IN_USE if claims or node.shown else RETIRABLE
    return _said(node_id, now_ms - heard_ms, len(node.shown), claims, what)


def _said(node_id: str, unheard_ms: int, instances: int, claims: int, what: str) -> dict[str, Any]:
    return {"node_id": node_id, "unheard_ms": unheard_ms, "instances": instances, "claims": claims, "what": what}


def _came_ms(log: Log, state: State, node: Node) -> int:
    """When the log took the node's last audit, whatever its host's clock says; -1 if there is none, or it is not at hand any more."""
    ledger = state.ledger_of(node.node_id)
    if node.audit is None or ledger is None:
        return -1
    there = Position(CLAIMS, ledger.partition, node.audit.offset)
    place = state.laid.get((ledger.partition, node.audit.offset), there)
    if place.offset < log.start(place.topic, place.partition):
        return -1
    return log.read(place.topic, place.partition, place.offset, 1)[0].time_ms


def _heard_ms(node: Node) -> int | None:
    """When the node was last audited with an answer, or, if it never was, since when its audits fail."""
    return node.unknown_since_ms if node.audit is None else node.audit.taken_at_ms
