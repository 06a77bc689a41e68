"""docs/policies.md: its file is a policy, its code a filter and a weigher, and every name that a policy may have stands there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from streams.scheduling.filters import FILTERS
from streams.scheduling.loading import from_toml
from streams.scheduling.options import Options
from streams.scheduling.policy import FILTERS_DEFAULT, POLICIES
from streams.scheduling.weighers import WEIGHERS

TEXT = (Path(__file__).resolve().parents[3] / "docs" / "policies.md").read_text(encoding="utf-8")


def test_the_file_that_is_shown_is_a_policy() -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)

    policy = from_toml(shown, source="docs/policies.md")

    assert policy.pairs == (("RAMWeigher", -1.0), ("IoOpsWeigher", -1.0))


def test_the_code_that_is_shown_may_be_named_by_a_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shown,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    (tmp_path / "shown_on_the_page.py").write_text(shown)
    monkeypatch.syspath_prepend(tmp_path)
    named = 'filters = ["shown_on_the_page:not_in_a_loud_rack"]\nweighers = [{weigher = "shown_on_the_page:free_memory"}]'

    policy = from_toml(named, source="docs/policies.md")

    sys.modules.pop("shown_on_the_page")
    assert policy.filters == ("shown_on_the_page:not_in_a_loud_rack",)


def test_every_policy_filter_weigher_and_option_is_named_and_no_other() -> None:
    named = set(re.findall(r"`([a-z_]+|[A-Za-z_]*(?:Filter|Weigher|Isolation)|[a-z]+-[a-z]+)`", TEXT))
    known = {*POLICIES, *FILTERS, *WEIGHERS, *Options.__struct_fields__}

    assert known - named == set()
    assert {name for name in named if name.endswith(("Filter", "Weigher", "Isolation"))} - known == set()


def test_the_default_filters_stand_there_in_their_order() -> None:
    listed = re.findall(r"`(\w+)`", TEXT[TEXT.index("The default: ") : TEXT.index("To be added: ")])

    assert listed == list(FILTERS_DEFAULT)
