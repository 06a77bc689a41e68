"""docs/programs.md: its table of topics is the program's."""

from __future__ import annotations

import re
from pathlib import Path

from schemas.topics import TOPICS

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "programs.md").read_text(encoding="utf-8")


def test_every_topic_stands_there_with_its_key_and_how_it_is_kept() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| ([^|]+) \| [^|]+ \| ([a-z-]+) \|$", TEXT, re.MULTILINE)

    assert rows == [(topic.name, topic.key or "-", topic.kept) for topic in TOPICS.values()]
