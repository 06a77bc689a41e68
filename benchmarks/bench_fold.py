"""How many records of `claims` one core folds a second: decode, rules and digest, from records already in memory.

`python -m benchmarks.bench_fold [--records N] [--nodes N] [--kinds] [--json]`. With `--kinds` the cost of each kind of record is told apart
(in a run of its own: looking at the clock for each record costs too). What is measured is checked: the claims held at the end are those
whose guests run.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import Counter
from collections.abc import Sequence

from benchmarks.ledger_log import LedgerLog, LogRecord, kind_of
from benchmarks.results import Report
from projections.ledger import Ledger
from schemas.codec import CLAIMS_DECODER


def decoded(records: Sequence[LogRecord]) -> float:
    """Seconds to decode every record and drop it: the floor under the fold."""
    decode = CLAIMS_DECODER.decode
    began = time.perf_counter()
    for record in records:
        decode(record.value)
    return time.perf_counter() - began


def folded(records: Sequence[LogRecord]) -> tuple[float, Ledger]:
    """Seconds to fold every record, and the state."""
    ledger = Ledger(0, 1)
    apply = ledger.apply
    began = time.perf_counter()
    for offset, time_ms, key, value in records:
        apply(offset, time_ms, key, value)
    return time.perf_counter() - began, ledger


def cost_by_kind(records: Sequence[LogRecord]) -> dict[str, tuple[int, float]]:
    """Number of records and mean microseconds of each kind."""
    ledger, clock = Ledger(0, 1), time.perf_counter
    spent: Counter[str] = Counter()
    seen: Counter[str] = Counter()
    for offset, time_ms, key, value in records:
        began = clock()
        step = ledger.apply(offset, time_ms, key, value)
        took = clock() - began
        assert step is not None
        kind = kind_of(step.event) if step.event is not None else "dead"
        spent[kind] += round(took * 1e9)
        seen[kind] += 1
    return {kind: (seen[kind], spent[kind] / seen[kind] / 1_000) for kind in seen}


def check(ledger: Ledger, log: LedgerLog) -> None:
    """The fold read what the generator wrote."""
    held = len(ledger.claims)
    assert held == log.guests_running, f"the fold holds {held} claims, {log.guests_running} guests run"
    unconfirmed = sum(claim.confirmed_ms is None for claim in ledger.claims.values())
    assert unconfirmed <= 1, f"{unconfirmed} claims are not confirmed, only that of the last record may be"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--kinds", action="store_true", help="tell the cost of each kind of record apart")
    parser.add_argument("--json", action="store_true", help="an object a line")
    options = parser.parse_args()
    log = LedgerLog(nodes=options.nodes)
    records = list(log.records(options.records))
    gc.collect()
    gc.freeze()  # The list of records is the benchmark's own: the collector shall not walk it in every run.
    report = Report("bench_fold", as_json=options.json)
    said = {"records": len(records), "nodes": options.nodes, "claims": log.guests_running}
    report.row("decode only", len(records) / decoded(records), "records/s", said)
    seconds, ledger = folded(records)
    check(ledger, log)
    report.row("memory", len(records) / seconds, "records/s", said)
    if options.kinds:
        for kind, (count, cost_us) in sorted(cost_by_kind(records).items(), key=lambda item: -item[1][0] * item[1][1]):
            report.row(f"memory, {kind}", cost_us, "us/record", {"records": count, "share": f"{count / len(records):.1%}"})


if __name__ == "__main__":
    main()
