"""Where the tables of a stream processor are, unless somebody says otherwise."""

from __future__ import annotations

from pathlib import Path

from streams.cli.reading.open_log import named_log

STATE_HELP = "Folder of the tables; default: the log's path with -state behind it, on Kafka claimlog-PREFIX-state where it is started."


def state_folder(log: str | None) -> Path:
    """Tables lie beside the log they come from; where that is a cluster, in the working directory."""
    spec = named_log(log)
    if spec.startswith("kafka:"):
        address, _, prefix = spec.removeprefix("kafka://").partition("?")[0].partition("/")
        return Path(f"claimlog-{prefix or address.replace(':', '-')}-state")
    return Path(f"{spec.removeprefix('sqlite:')}-state")
