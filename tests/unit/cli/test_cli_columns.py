"""`-c COLUMN` of an answer without items: a column that no item would have is refused there as well, and one that it would have is not.

A script that asks for a column that is not there must not work until the day on which there is something to tell.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.topics import AUDITS
from streams.log.base import Message
from tests.cli_log import FleetLog

ASKED: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("leaks",), ("leaks", "--kind", "double-claim")),
    (("leaks", "--heal"), ("leaks", "--heal", "--kind", "double-claim")),
    (("events",), ("events", "--until", "2001-01-01T00:00:00Z")),
    (("timeline", "node/c01"), ("timeline", "node/c01", "--since", "2025-12-01")),
    (("diff", "--at", "2025-11-21T09:09:10Z"), ("diff", "--at", "now", "--at", "now")),
    (("claims", "list"), ("claims", "list", "--node", "c02")),
    (("dead-letters", "list"), ("dead-letters", "list", "--kind", "damaged")),
]
"""Each verb with something to tell, and with nothing."""


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    fleet.audit("c02")
    fleet.claim("r1/0/s-1.1", "i-77", "c01", memory_mib=2048, vcpus=2)
    fleet.log.append([Message(AUDITS, b"c01", b'{"type":"hyper')])
    for _ in range(2):
        fleet.now_ms += 60_000
        fleet.audit("c01", {"ghost": 512})
    return fleet


@pytest.mark.parametrize(("full", "empty"), ASKED, ids=[" ".join(asked[0][:2]) for asked in ASKED])
def test_an_answer_without_items_knows_the_columns_of_one_with_items(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], full: tuple[str, ...], empty: tuple[str, ...]
) -> None:
    items = fleet.run(capsys, *full, "-o", "json").json["items"]
    names = {name for item in items for name in item}
    parts = {f"{name}.{part}" for item in items for name, value in item.items() if isinstance(value, dict) for part in value}

    nothing = fleet.run(capsys, *empty, "-o", "json")
    with_all = fleet.run(capsys, *empty, "-o", "json", *(f"-c={name}" for name in sorted(names | parts)))
    with_none = fleet.run(capsys, *empty, "-c", "nonsense")
    sorted_by_none = fleet.run(capsys, *empty, "--sort", "-nonsense")

    assert names
    assert nothing.json["items"] == []
    assert (with_all.code, with_all.json["items"]) == (nothing.code, [])
    assert (with_none.code, with_none.out, sorted_by_none.code) == (2, "", 2)
    assert "there is no column 'nonsense'; there are: " in with_none.err


@pytest.mark.parametrize(
    "verb",
    [
        ("leaks", "--heal", "--yes", "--report-age", "9999d"),
        ("node", "retire", "--unheard-for", "1s", "--yes"),
        ("fleet", "apply", "{folder}/fleet.toml"),
        ("topics", "apply"),
        ("archive", "{folder}/archive", "--below", "now"),
        ("copy", "{folder}/copy.jsonl"),
        ("copy", "sqlite:{folder}/copy.db"),
        ("place", "--memory", "1GiB", "--wait", "0s"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("flag", ["-c", "--sort"])
def test_who_writes_refuses_an_unknown_column_before_anything_is_written(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: tuple[str, ...], flag: str
) -> None:
    (tmp_path / "fleet.toml").write_text('[defaults]\nzone = "z1"\n')
    words = [word.format(folder=tmp_path) for word in verb]
    before = {topic: fleet.log.ends(topic) for topic in fleet.log.topics()}

    refused = fleet.run(capsys, *words, flag, "nonsense")

    assert (refused.code, refused.out) == (2, "")
    assert "there is no column 'nonsense'; there are: " in refused.err
    assert {topic: fleet.log.ends(topic) for topic in fleet.log.topics()} == before
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(("copy", "archive"))]
