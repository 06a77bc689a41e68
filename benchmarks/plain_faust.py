"""A plain Faust table over `claims`, the peer of `bench_processor_kafka`: an ordinary agent that keeps one row a node.

A row has the node's held claims and its guests; no rule is applied, nothing is judged, published or checked but what Faust's own
changelog writes. It ends after so many records and prints how many seconds those took, from the first to the last.

    python -m benchmarks.plain_faust BROKER TOPIC PARTITIONS RECORDS FOLDER [memory|rocksdb]
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import faust
import msgspec

DECODE = msgspec.json.decode
STORES = {"memory": "memory://", "rocksdb": "rocksdb://"}


def folded(row: dict[str, Any], event: dict[str, Any]) -> dict[str, Any]:
    """The row of a node after one event."""
    match event["type"]:
        case "claim-requested":
            row["claims"] = row.get("claims", {}) | {item["claim_id"]: item["resources"] for item in event["items"]}
        case "claim-released":
            row.get("claims", {}).pop(event["claim_id"], None)
        case "instance-observed":
            guests = row.setdefault("guests", {})
            if event["change"] in {"deleted", "departed"}:
                guests.pop(event["instance"]["instance_id"], None)
                row.get("claims", {}).pop(event.get("claim_id"), None)
            else:
                guests[event["instance"]["instance_id"]] = event["instance"].get("resources", {})
        case "node-observed":
            row["taken_at_ms"] = event["taken_at_ms"]
            if event.get("instances") is not None:
                row["guests"] = {each["instance_id"]: each.get("resources", {}) for each in event["instances"]}
    return row


def make(broker: str, topic: str, partitions: int, records: int, folder: Path, store: str) -> faust.App:
    """The app."""
    app = faust.App(
        f"plain-{store}-{topic.replace('.', '-')}",
        broker=f"kafka://{broker}",
        datadir=folder,
        store=STORES[store],
        web_enabled=False,
        topic_disable_leader=True,
        topic_replication_factor=1,
        topic_partitions=partitions,
        consumer_auto_offset_reset="earliest",
        worker_redirect_stdouts=False,
    )
    source = app.topic(topic, key_serializer="raw", value_serializer="raw", partitions=partitions)
    rows = app.Table("rows", default=dict, partitions=partitions)
    seen, began = 0, 0.0

    async def keep(stream: Any) -> None:
        nonlocal seen, began
        async for event in stream.events():
            began = began or time.perf_counter()
            node = event.key.decode()
            rows[node] = folded(rows[node], DECODE(event.value))
            seen += 1
            if seen == records:
                print(time.perf_counter() - began, flush=True)
                # Faust takes seconds to end, and what follows would read records on.
                os._exit(0)

    app.agent(source, concurrency=1, name="keep")(keep)
    return app


def main() -> None:
    broker, topic, partitions, records, folder = sys.argv[1:6]
    store = sys.argv[6] if len(sys.argv) > 6 else "memory"
    app = make(broker, topic, int(partitions), int(records), Path(folder), store)
    faust.Worker(app, loglevel="WARN").execute_from_commandline()


if __name__ == "__main__":
    main()
