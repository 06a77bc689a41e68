"""`claimlog schemas`: the JSON Schemas of all records, for readers in other languages."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from schemas import export as schema_export
from streams.cli.exits import Exit
from streams.cli.printed.printable import say
from streams.cli.problems import UsageProblem

app = App(name="schemas", help="JSON Schemas of all records, one an event type, for readers in other languages.")


@app.command(name="list")
def list_() -> int:
    """One line an event type: the type, its topic and what it is keyed by."""
    for kind, document in sorted(schema_export.schemas().items()):
        print(f"{kind}\t{document['x-topic']}\t{document['x-key']}")
    return 0


@app.command
def show(kind: str, /) -> int:
    """The JSON Schema of one event type.

    Args:
        kind: the type, as in `claim-requested`.
    """
    try:
        document = schema_export.schema(kind)
    except KeyError as error:
        raise UsageProblem(str(error.args[0])) from None
    print(schema_export.as_json(document).decode())
    return 0


@app.command
def export(directory: Path, /) -> int:
    """Write TYPE.json for every event type into a directory.

    Args:
        directory: made if it is not there; files of the same names are replaced.
    """
    try:
        written = schema_export.export(directory)
    except OSError as error:
        say(f"claimlog: {directory}: the schemas cannot be written: {error.strerror or error}")
        return Exit.ERROR
    say(f"{len(written)} schemas written to {directory}")
    return 0
