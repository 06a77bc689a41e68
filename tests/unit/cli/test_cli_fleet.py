"""`claimlog fleet`: a file is applied exactly once, exactly as written, and mistakes in it are named by their place."""

from __future__ import annotations

import io
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from projections.node import Node
from schemas.claims import NodeConfigured
from schemas.codec import decode
from schemas.topics import CLAIMS
from streams.cli.fleet import file, verb
from streams.cli.reading.state import State
from streams.cli.reading.state_at import state_at
from streams.log.base import Log
from tests.cli_log import PARTITIONS, FleetLog, Said

TOML = """
[defaults]
zone = "east"
memory_mib = { ratio = 1.1, reserved = 512 }

[nodes."c0*"]
vcpus = { ratio = 16 }

[nodes.c02]
zone = "west"
memory_mib = { ratio = "unlimited" }
traits = ["HW_AVX2"]
disk_mib = { min_unit = 1024, max_unit = 40960, step_size = 1024 }

[aggregates.ssd]
nodes = ["c01", "d*"]
metadata = { disk = "ssd" }
"""


@pytest.fixture
def fleet(tmp_path: Path) -> FleetLog:
    fleet = FleetLog(tmp_path)
    for node_id in ("c01", "c02", "d01"):
        fleet.audit(node_id, {})
    return fleet


def applied(fleet: FleetLog, capsys: pytest.CaptureFixture[str], text: str, *flags: str) -> Said:
    file = fleet.path.parent / "fleet.toml"
    file.write_text(text)
    return fleet.run(capsys, "fleet", "apply", str(file), *flags, "-o", "json")


def words(fleet: FleetLog) -> list[NodeConfigured]:
    records = [record for number in range(PARTITIONS) for record in fleet.log.read(CLAIMS, number, 0)]
    return [event for record in records if isinstance(event := decode(CLAIMS, record.value), NodeConfigured)]


def test_defaults_patterns_and_names_are_laid_over_each_other(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = applied(fleet, capsys, TOML)

    assert said.code == 0
    nodes = {node["node_id"]: node for node in fleet.run(capsys, "fleet", "show", "-o", "json").json["items"]}
    assert [nodes[node]["zone"] for node in ("c01", "c02", "d01")] == ["east", "west", "east"]
    assert [nodes[node]["memory_mib"]["ratio_milli"] for node in ("c01", "c02", "d01")] == [1100, None, 1100]
    assert [nodes[node]["memory_mib"]["reserved"] for node in ("c01", "c02", "d01")] == [512, 512, 512]
    assert [nodes[node]["vcpus"]["ratio_milli"] for node in ("c01", "c02", "d01")] == [16000, 16000, 1000]
    assert [[each["name"] for each in nodes[node]["aggregates"]] for node in ("c01", "c02", "d01")] == [["ssd"], [], ["ssd"]]
    assert nodes["d01"]["aggregates"][0]["metadata"] == {"disk": "ssd"}
    assert nodes["c02"]["traits"] == ["HW_AVX2"]
    assert nodes["c02"]["disk_mib"] == {"reserved": 0, "ratio_milli": 1000, "min_unit": 1024, "max_unit": 40960, "step_size": 1024}


def test_pages_are_kept_back_in_each_cell_as_many_as_the_file_says(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    text = "[nodes.c01]\npages_reserved = [{ size_kib = 2048, reserved = 128 }]\n"

    said, again = applied(fleet, capsys, text), applied(fleet, capsys, text)

    (change,) = said.json["items"]
    assert change == {"node_id": "c01", "field": "pages_reserved", "before": "none", "after": "128 of 2048 KiB"}
    assert again.json["items"] == []
    shown = {node["node_id"]: node["pages_reserved"] for node in fleet.run(capsys, "fleet", "show", "-o", "json").json["items"]}
    assert shown == {"c01": [{"size_kib": 2048, "reserved": 128}], "c02": [], "d01": []}


def test_more_reserved_than_a_node_has_is_written_and_said(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = applied(fleet, capsys, "[defaults]\nvcpus = { reserved = 99 }\n[nodes.c01]\nvcpus = { reserved = 1 }\n")

    assert (said.code, len(words(fleet))) == (0, 3)
    assert "more is reserved than there is, so nothing fits: c02: vcpus: 99 of 16; d01: vcpus: 99 of 16\n" in said.err


def test_a_file_applied_twice_writes_once_and_says_so(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    first = applied(fleet, capsys, TOML)
    second = applied(fleet, capsys, TOML)

    assert "3 of 3 nodes changed" in first.err
    assert (second.json["items"], second.code) == ([], 0)
    assert "nothing to change on 3 nodes" in second.err
    assert len(words(fleet)) == 3


def test_the_ledger_is_folded_once_unless_reports_are_on_their_way_there(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folds: list[State] = []

    def counted(log: Log, **named: Any) -> State:
        folds.append(state_at(log, **named))
        return folds[-1]

    monkeypatch.setattr(verb, "state_at", counted)
    (path := tmp_path / "fleet.toml").write_text(TOML)

    said = fleet.run(capsys, "fleet", "apply", str(path), "--dry-run", "-o", "json")

    assert (said.code, len(folds)) == (0, 1)
    fleet.audit("e01", {}, carry=False)
    later = fleet.run(capsys, "fleet", "apply", str(path), "--dry-run", "-o", "json")
    assert (later.code, len(folds), later.json["cut"]) == (0, 3, said.json["cut"])
    assert {item["node_id"] for item in later.json["items"]} == {"c01", "c02", "d01", "e01"}


def test_only_patterns_are_compared_with_every_node(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[str, str]] = []

    def counted(name: str, pattern: str) -> bool:
        compared.append((name, pattern))
        return fnmatchcase(name, pattern)

    monkeypatch.setattr(file, "fnmatchcase", counted)
    names = [f"c{number}" for number in range(50)]
    tables = "".join(f'[nodes.{name}]\nzone = "z-{name}"\n' for name in names)
    wants = file.read(f'{tables}[nodes."*9"]\ntraits = ["T"]\n[aggregates.a]\nnodes = {names[:25]}\n[aggregates.b]\nnodes = ["c1?"]\n', "f")

    assert file.unknown_names(wants, names) == []
    found = [file.wanted(wants, Node(name)) for name in names]

    assert {pattern for _, pattern in compared} == {"*9", "c1?"}
    assert [fields.zone for fields in found] == [f"z-{name}" for name in names]
    assert [number for number, fields in enumerate(found) if fields.traits == ("T",)] == [9, 19, 29, 39, 49]
    assert [len(fields.aggregates or ()) for fields in found] == [1] * 10 + [2] * 10 + [1] * 5 + [0] * 25


def test_only_what_differs_is_written(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    applied(fleet, capsys, TOML)

    said = applied(fleet, capsys, TOML.replace("ratio = 16 }", "ratio = 8.5 }"))

    assert [(change["node_id"], change["field"], change["before"], change["after"]) for change in said.json["items"]] == [
        ("c01", "vcpus.ratio", "16", "8.5"),
        ("c02", "vcpus.ratio", "16", "8.5"),
    ]
    last = words(fleet)[-1].fields
    assert (last.zone, last.memory_mib) == (last.traits, last.disk_mib)  # All of them are left out.


def test_what_the_file_does_not_mention_stays(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    applied(fleet, capsys, TOML)

    applied(fleet, capsys, "[nodes.c01]\nmemory_mib = { reserved = 1024 }\n")

    (node,) = fleet.run(capsys, "fleet", "show", "c01", "-o", "json").json["items"]
    assert (node["memory_mib"]["ratio_milli"], node["memory_mib"]["reserved"], node["zone"]) == (1100, 1024, "east")
    assert [each["name"] for each in node["aggregates"]] == ["ssd"]


def test_a_dry_run_says_the_same_and_writes_nothing(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    dry = applied(fleet, capsys, TOML, "--dry-run")
    untouched = len(words(fleet))
    real = applied(fleet, capsys, TOML)

    assert dry.json["items"] == real.json["items"]
    assert untouched == 0
    assert "nothing was written (--dry-run)" in dry.err


def test_the_ratio_moves_the_limit_exactly(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    applied(fleet, capsys, "[defaults]\nmemory_mib = { ratio = 1.001, reserved = 1 }\n")

    said = fleet.run(capsys, "nodes", "c01", "-o", "value", "-c", "memory_mib.limit")

    assert said.out == f"{(8192 - 1) * 1001 // 1000}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[defaults]\nmemory_mib = { ratio = 1.2345 }\n", "defaults.memory_mib.ratio: 1.2345 has more than three decimals"),
        ("[defaults]\nmemory_mib = { ratio = 0 }\n", "defaults.memory_mib.ratio: 0 is out of range"),
        ("[defaults]\nmemory_mib = { ratio = 1e999999 }\n", "defaults.memory_mib.ratio: 1E+999999 is out of range"),
        (f"[defaults]\nmemory_mib = {{ ratio = 1e{'9' * 30} }}\n", "a number in it is too large to be read"),
        (f"[defaults]\nmemory_mib = {{ reserved = {'9' * 5000} }}\n", "a number in it is too large to be read"),
        ('[nodes.c01]\nvcpus = { ratio = "lots" }\n', "vcpus.ratio: expected a number such as 1.5, or \"unlimited\", got 'lots'"),
        ("[nodes.c01]\nvcpus = { step_size = 0 }\n", "vcpus.step_size: expected 1 or more, got 0"),
        ("[nodes.c01]\nvcpus = { min_unit = 5, max_unit = 2 }\n", "c01: vcpus: min_unit 5 is above max_unit 2"),
        ("[defaults]\nvcpus = { max_unit = 2 }\n[nodes.c01]\nvcpus = { min_unit = 5 }\n", "c01: vcpus: min_unit 5 is above max_unit 2"),
        ("[nodes.c01]\nvcpus = { ration = 1 }\n", 'nodes."c01": it has the unknown field `ration` - at `vcpus`; there are: reserved'),
        ("[nodes.c01]\nmemory_mib = { reserved = -1 }\n", 'nodes."c01": Expected `int` >= 0 - at `memory_mib.reserved`'),
        ("[nodes.c01]\nmemory = 1\n", 'nodes."c01": it has the unknown field `memory`; there are: vcpus, pcpus, memory_mib'),
        ("[aggregates.ssd]\nnode = ['c01']\nnodes = []\n", "aggregates.ssd: it has the unknown field `node`; there are: nodes, metadata"),
        ("[node.c01]\nzone = 'x'\n", "there is no section [node]; there are: defaults, nodes, aggregates"),
        ("nodes = 3\n", "nodes must be a table, not 3"),
        ("[nodes]\nc01 = 3\n", "nodes must be a table of tables"),
        ("[aggregates.ssd]\nmetadata = {}\n", "aggregates.ssd: Object missing required field `nodes`"),
        ("[defaults\n", "at line 1"),
        ('[defaults]\ntraits = ["HW_A", "HW_B", "HW_A"]\n', "defaults.traits: HW_A is there twice"),
        ('[defaults]\ntraits = ["hw_avx2"]\n', "defaults: Expected `str` matching regex '^[A-Z0-9_]{1,255}\\\\Z' - at `traits[0]`"),
        ("[defaults]\npages_reserved = [{ size_kib = 2048, total = 4 }]\n", "it has the unknown field `total` - at `pages_reserved[0]`"),
        ("[defaults]\npages_reserved = [{ size_kib = 2048, reserved = 0 }]\n", "Expected `int` >= 1 - at `pages_reserved[0].reserved`"),
        (
            "[defaults]\npages_reserved = [{ size_kib = 4, reserved = 1 }, { size_kib = 4, reserved = 2 }]\n",
            "defaults.pages_reserved: 4 is there twice",
        ),
        ("[defaults]\npages_reserved = [{ size_kib = 2000, reserved = 1 }]\n", "no host has pages of 2000 KiB; expected a power of two"),
        ('[defaults]\nzone = "ea\\u0000st"\n', "' - at `zone`"),
        ('[defaults]\nzone = "east\\n"\n', "' - at `zone`"),
        ('[aggregates.ssd]\nnodes = ["c01"]\nmetadata = { "a\\n" = "b" }\n', "matching regex"),
        ("[nodes.c99]\nzone = 'x'\n", "node 'c99' is not known; known: c01, c02, d01; --new"),
    ],
)
def test_a_mistake_is_named_by_its_place_and_nothing_is_written(
    fleet: FleetLog, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    said = applied(fleet, capsys, text)

    assert (said.code, said.out) == (2, "")
    assert "fleet.toml: " in said.err
    assert message in said.err
    assert words(fleet) == []


def test_new_writes_settings_of_a_node_before_its_first_report(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = applied(fleet, capsys, '[nodes.c99]\nzone = "north"\n', "--new")

    assert said.code == 0
    assert fleet.run(capsys, "fleet", "show", "c99", "-o", "value", "-c", "zone").out == "north\n"


def test_a_pattern_that_fits_nothing_is_said(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = applied(fleet, capsys, '[nodes."x*"]\nzone = "north"\n')

    assert said.code == 0
    assert "the pattern 'x*' fits no node" in said.err


def test_a_file_that_is_not_there_is_named(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    said = fleet.run(capsys, "fleet", "apply", "nowhere.toml")

    assert (said.code, said.err) == (2, "claimlog: nowhere.toml cannot be read: No such file or directory\n")


def test_a_file_may_come_through_a_pipe_and_begin_as_other_systems_files_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = FleetLog(tmp_path)
    fleet.audit("c01")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'\xef\xbb\xbf[defaults]\nzone = "east"\n')))

    said = fleet.run(capsys, "fleet", "apply", "-")

    assert (said.code, said.err.splitlines()[-1]) == (0, "1 of 1 nodes changed")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"[defalts]\n")))
    assert "stdin: there is no section [defalts]" in fleet.run(capsys, "fleet", "apply", "-").err


def test_the_wide_table_has_units_pages_and_the_reason_too(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    rules = "memory_mib = { min_unit = 512, step_size = 512 }\nvcpus = { max_unit = 16 }\n"
    applied(fleet, capsys, f"[nodes.c01]\n{rules}pages_reserved = [{{ size_kib = 2048, reserved = 128 }}]\n")
    fleet.run(capsys, "node", "disable", "c01", "--reason", "a new disk")

    heads, row = (re.split("  +", line) for line in fleet.run(capsys, "fleet", "show", "c01", "-o", "wide").out.splitlines())

    shown = dict(zip(heads, row, strict=True))
    assert {name: shown[name] for name in ("reason", "memory units", "vcpus units", "disk units", "pages reserved")} == {
        "reason": "a new disk",
        "memory units": "512 to any by 512",
        "vcpus units": "1 to 16 by 1",
        "disk units": "-",
        "pages reserved": "128 of 2048 KiB",
    }


def test_amounts_of_memory_that_are_nothing_are_0_as_in_every_other_table(fleet: FleetLog, capsys: pytest.CaptureFixture[str]) -> None:
    shown = fleet.run(capsys, "fleet", "show", "c01").out

    assert "MiB" not in shown
