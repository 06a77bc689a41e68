"""The pages: every link leads somewhere, and the index names each page."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "benchmarks").glob("*.md"), *(ROOT / "tests").rglob("*.md")])


def targets(page: Path) -> list[tuple[str, str]]:
    """The links of a page to files of ours: path and heading, either empty."""
    found = re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)", page.read_text(encoding="utf-8"))
    return [(path, heading) for path, heading in found if not path.startswith(("http:", "https:"))]


def headings(page: Path) -> set[str]:
    """The anchors that a page's headings make."""
    lines = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.strip().lower()).replace(" ", "-") for line in lines}


def test_every_link_between_the_pages_leads_to_a_file_and_a_heading_that_are_there() -> None:
    lost = []
    for page in PAGES:
        for path, heading in targets(page):
            target = page.parent / path if path else page
            if not target.exists() or (heading and heading not in headings(target)):
                lost.append(f"{page.relative_to(ROOT)}: {path}#{heading}")

    assert len(PAGES) > 20
    assert lost == []


def test_the_index_names_every_page() -> None:
    named = {path for path, _ in targets(DOCS / "README.md")}

    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} <= named


def test_the_changelog_says_nothing_twice() -> None:
    entries = re.split(r"\n- ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))[1:]
    openings = [" ".join(entry.split())[:60] for entry in entries]

    assert len(openings) > 30
    assert sorted({opening for opening in openings if openings.count(opening) > 1}) == []
