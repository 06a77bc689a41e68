"""How many records of `claims` does a cold replay from Kafka fold a second, in one process and in two?

`claimlog replay --no-from-snapshots` as a whole process, from its start to its answer: every record is fetched from the broker, decoded,
judged and hashed. Beside it reading alone, and the same records folded by a process that has them in memory. The broker runs on the same
cores. All answers must have the same digests. Run
`python -m benchmarks.bench_replay_kafka [--json] [--records N] [--nodes N] [--partitions N] [--folder DIR]`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.on_kafka import PROGRAM, ROOT, a_broker, history
from benchmarks.report import Report, arguments, positive, seconds
from projections.ledger import Ledger
from schemas.topics import CLAIMS
from streams import collector
from streams.log.base import Record
from streams.log.kafka import KafkaLog

READ_RECORDS = 5_000


def main() -> None:
    asked = arguments(__doc__ or "", add)
    with Report("replay_kafka", as_json=asked.json) as report, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=asked.folder)))
        bootstrap, _ = stack.enter_context(a_broker(folder / "broker"))
        ledger = history(bootstrap, "bench-replay", records=asked.records, nodes=asked.nodes, partitions=asked.partitions)
        said = {"records": asked.records, "nodes": asked.nodes, "partitions": asked.partitions}
        answers = []
        for jobs in (1, 2):
            flags = ("replay", "--log", ledger.address, "--no-from-snapshots", "--jobs", str(jobs), "-o", "json")
            took_seconds = seconds(lambda flags=flags: answers.append(answer(*flags)))  # type: ignore[misc]
            report.add("replay", asked.records / took_seconds, "records/s", **said, jobs=jobs)
        with KafkaLog.open(ledger.settings) as log, collector.calmed():
            records: list[list[Record]] = []
            report.add("read only", asked.records / seconds(lambda: records.extend(read(log))), "records/s", **said)
        folded: list[Ledger] = []
        report.add("fold only", asked.records / seconds(lambda: folded.extend(map(fold, records))), "records/s", **said)
        answers.append([each.digest.hex() for each in folded])
        assert answers[0] == answers[1] == answers[2], f"digests differ: {answers}"


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--records", type=positive, default=1_000_000)
    parser.add_argument("--nodes", type=positive, default=1_000)
    parser.add_argument("--partitions", type=positive, default=4)
    parser.add_argument("--folder", default=None)


def answer(*flags: str) -> list[str]:
    """The digests that the command line gives, by partition."""
    ran = subprocess.run([sys.executable, "-c", PROGRAM, *flags], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return [item["digest"] for item in json.loads(ran.stdout)["items"]]


def read(log: KafkaLog) -> list[list[Record]]:
    """All records by partition."""
    found = []
    for number, end in sorted(log.ends(CLAIMS).items()):
        records: list[Record] = []
        while len(records) < end:
            records += log.read(CLAIMS, number, len(records), READ_RECORDS)
        found.append(records)
    return found


def fold(records: list[Record]) -> Ledger:
    """One partition's records, from the first, whose place says how many partitions there are."""
    with collector.calmed():
        opened = json.loads(records[0].value)
        ledger = Ledger(opened["partition"], opened["partitions"])
        for record in records:
            ledger.apply(record.offset, record.time_ms, record.key, record.value)
    return ledger


if __name__ == "__main__":
    main()
