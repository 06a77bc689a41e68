"""Holds the shape of the code: who imports whom, where an outside library lives, what happens at import, how long things get.

Each rule is a function from a parsed module to complaints, so the last tests can show that each one bites.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("schemas", "projections", "streams", "producers")

# A module may import from these packages. Longest prefix wins; the command line is the composition root.
MAY_IMPORT = {
    "schemas/": {"schemas"},
    "projections/": {"projections", "schemas"},
    "producers/": {"producers", "schemas"},
    "streams/": {"streams", "projections", "schemas"},
    "streams/cli/": {"streams", "projections", "schemas", "producers"},
}

# Inside the command line each of these stands on those before it, and the verbs on all.
LAYERS = ("problems", "printed", "given", "reading")

# Where each outside library lives: one home, so that it can be replaced there. A library that is not here is not used.
HOMES = {
    "msgspec": ("schemas/", "projections/", "streams/", "producers/"),
    "apsw": ("streams/log/sqlite_file.py",),
    "confluent_kafka": ("streams/log/kafka",),
    "isal": ("streams/log/blocks.py",),
    "faust": ("streams/app.py",),
    "rocksdict": ("projections/rocks.py",),
    "libvirt": ("producers/libvirt_",),
    "numpy": ("streams/scheduling/",),
    "prometheus_client": ("streams/metrics",),
    "cyclopts": ("streams/cli/",),
}

# Not at import: the world outside, the clock, chance. (`field(default_factory=time.time)` names a function and calls nothing.)
TOUCHES_THE_WORLD = (
    "open", "print", "input", "exec", "eval",
    "os.environ", "os.getenv", "os.urandom", "os.getpid", "os.open", "os.mkdir", "os.makedirs", "os.listdir",
    "subprocess", "socket", "threading.Thread", "multiprocessing", "tempfile", "shutil", "signal", "logging.basicConfig",
    "time.time", "time.monotonic", "time.sleep", "time.perf_counter", "datetime.now", "datetime.datetime.now",
    "random", "secrets", "uuid.uuid1", "uuid.uuid4",
    "apsw.Connection", "sqlite3.connect", "libvirt.open", "libvirt.openReadOnly", "confluent_kafka.Producer", "confluent_kafka.Consumer",
    "asyncio.run", "Path.cwd", "Path.home",
)  # fmt: skip
TOUCHING_METHODS = {"connect", "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "unlink", "iterdir", "glob", "rglob"}

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60


class Module(NamedTuple):
    """One source file; `path` is relative to the project, with slashes."""

    path: str
    text: str
    tree: ast.Module


def module(path: str, text: str) -> Module:
    return Module(path, text, ast.parse(text))


@cache
def sources() -> tuple[Module, ...]:
    files = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return tuple(module(file.relative_to(ROOT).as_posix(), file.read_text()) for file in files)


def home(path: str, table: Iterable[str]) -> str:
    """The longest entry of `table` that `path` starts with."""
    return max((prefix for prefix in table if path.startswith(prefix)), key=len, default="")


def imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and full module name of every import, also inside functions and for type checking only."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=name, level=0):
                yield node.lineno, name or ""
            case ast.ImportFrom():
                yield node.lineno, "(relative)"


def wrong_imports(source: Module) -> Iterator[str]:
    """schemas <- projections <- streams; producers -> schemas; each outside library in its home."""
    allowed = MAY_IMPORT[home(source.path, MAY_IMPORT)]
    for line, name in imports(source.tree):
        top = name.split(".")[0]
        place = f"{source.path}:{line}"
        if name == "(relative)":
            yield f"{place} imports relatively; write the package's name"
        elif top in PACKAGES:
            if top not in allowed:
                yield f"{place} imports {name}; it may import {sorted(allowed)}"
        elif top not in sys.stdlib_module_names and not home(source.path, HOMES.get(top, ())):
            yield f"{place} imports {top}; its home is {HOMES.get(top, 'not named in HOMES: discuss the dependency first')}"


def wrong_layers(source: Module) -> Iterator[str]:
    """What answers look like knows nothing of what people write, that nothing of what is read, and all three nothing of the verbs."""
    under = "streams.cli."
    layer = source.path.removesuffix(".py").replace("/", ".").removeprefix(under).split(".")[0]
    if not source.path.startswith("streams/cli/") or layer not in LAYERS:
        return
    allowed = LAYERS[: LAYERS.index(layer) + 1]
    for line, name in imports(source.tree):
        if name == "streams.cli" or (name.startswith(under) and name.removeprefix(under).split(".")[0] not in allowed):
            yield f"{source.path}:{line} imports {name}; of the command line it may import {list(allowed)}"


def modules_of(tree: ast.Module) -> Iterator[str]:
    """Full names of what is imported, `from a import b` as `a.b` as well: only the reader of the tree knows which of them is a module."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(origin), names=names):
                yield origin
                yield from (f"{origin}.{alias.name}" for alias in names)


def circles(modules: Iterable[Module]) -> str:
    """A circle of modules that import each other, if there is one; types are imports as well: who reads one has to read them all."""
    names = {source.path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): source for source in modules}
    graph = {name: {other for other in modules_of(source.tree) if other in names and other != name} for name, source in names.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as circle:
        return f"{' <- '.join(circle.args[1])}: move what they share below them"
    return ""


def dotted(node: ast.expr, names: Mapping[str, str]) -> str:
    """`os.environ` for the expression of that meaning, under whatever name it was imported; empty for anything else."""
    match node:
        case ast.Name(id=name):
            return names.get(name, name)
        case ast.Attribute(value=value, attr=attr):
            return f"{prefix}.{attr}" if (prefix := dotted(value, names)) else f"?.{attr}"
        case _:
            return ""


def imported_names(tree: ast.Module) -> dict[str, str]:
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names |= {alias.asname: alias.name for alias in aliases if alias.asname}
            case ast.ImportFrom(module=str(origin), names=aliases):
                names |= {alias.asname or alias.name: f"{origin.removeprefix('pathlib')}.{alias.name}".lstrip(".") for alias in aliases}
    return names


def run_at_import(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Every node that is evaluated when the module is imported: not the bodies of functions, but their decorators and defaults."""
    for node in body:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from run_at_import([*node.decorator_list, node.args])
            case ast.Lambda():
                yield from run_at_import([node.args])
            case ast.If(test=ast.Compare(left=ast.Name(id="__name__"))):
                continue
            case _:
                yield node
                yield from run_at_import(ast.iter_child_nodes(node))


def touches_at_import(source: Module) -> Iterator[str]:
    """Nothing connects, reads a file or an environment, or asks the clock at import."""
    names = imported_names(source.tree)
    for node in run_at_import(source.tree.body):
        called = ""
        if isinstance(node, ast.Call):
            called = dotted(node.func, names)
        elif isinstance(node, ast.Attribute | ast.Name) and dotted(node, names) == "os.environ":
            called = "os.environ"
        touches = called.rpartition(".")[2] in TOUCHING_METHODS
        if touches or any(called == name or called.startswith(f"{name}.") for name in TOUCHES_THE_WORLD):
            yield f"{source.path}:{getattr(node, 'lineno', 0)} uses {called} at import; do it in a function that is given what it needs"


Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_contract(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).split("[")[0] in {"Protocol", "ABC"} for base in node.bases)


def contract_methods(modules: Iterable[Module]) -> frozenset[str]:
    """Names of the methods that one of our Protocols documents; who keeps the contract need not say it again."""
    classes = (node for source in modules for node in source.tree.body if isinstance(node, ast.ClassDef) and is_contract(node))
    return frozenset(item.name for node in classes for item in node.body if isinstance(item, Function) and ast.get_docstring(item))


def undocumented(source: Module, contract: frozenset[str] = frozenset()) -> Iterator[str]:
    """A module says what it is for; every public class, function and method says what it does."""
    if source.tree.body and not ast.get_docstring(source.tree):
        yield f"{source.path}:1 has no docstring; say what the module is for"
    for node in source.tree.body:
        if not isinstance(node, Function | ast.ClassDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            yield f"{source.path}:{node.lineno} {node.name} has no docstring"
        for item in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(item, Function) and not item.name.startswith("_") and item.name not in contract and not ast.get_docstring(item):
                yield f"{source.path}:{item.lineno} {node.name}.{item.name} has no docstring, and no Protocol of ours documents it"


def lines_of(node: Function) -> int:
    """Lines of a function without decorators and docstring."""
    said = node.body[0] if ast.get_docstring(node) else None
    return (node.end_lineno or node.lineno) - node.lineno + 1 - ((said.end_lineno or said.lineno) - said.lineno + 1 if said else 0)


def over(kind: str, name: str, lines: int, lines_max: int) -> Iterator[str]:
    if lines > lines_max:
        yield f"{name} is {lines} lines long, {kind} may have {lines_max}: split it"


def too_long(source: Module) -> Iterator[str]:
    """Modules and functions stay short."""
    yield from over("a module", source.path, len(source.text.splitlines()), MODULE_LINES_MAX)
    for node in ast.walk(source.tree):
        if isinstance(node, Function):
            yield from over("a function", f"{source.path}:{node.name}", lines_of(node), FUNCTION_LINES_MAX)


def found(rule: Callable[[Module], Iterable[str]]) -> str:
    return "\n".join(complaint for source in sources() for complaint in rule(source))


def test_packages_depend_in_one_direction_and_outside_libraries_have_one_home() -> None:
    assert found(wrong_imports) == ""


def test_every_library_that_has_a_home_is_used_in_each_part_of_it() -> None:
    used = {(name.split(".")[0], source.path) for source in sources() for _, name in imports(source.tree)}
    homes = [(library, prefix) for library, prefixes in HOMES.items() for prefix in prefixes]

    assert [home for home in homes if not any(library == home[0] and path.startswith(home[1]) for library, path in used)] == []


def test_what_verbs_share_stands_in_layers() -> None:
    assert found(wrong_layers) == ""
    assert {source.path.split("/")[2] for source in sources() if source.path.startswith("streams/cli/")} > {*LAYERS[1:], f"{LAYERS[0]}.py"}


def test_what_the_command_line_says_to_people_is_made_printable_in_one_place() -> None:
    assert [source.path for source in sources() if source.path.startswith("streams/cli/") and "file=sys.stderr" in source.text] == [
        "streams/cli/printed/printable.py"
    ]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("streams/cli/printed/x.py", "from streams.cli.given.units_in import whole"),
        ("streams/cli/given/x.py", "def f():\n    import streams.cli.reading.state"),
        ("streams/cli/reading/x.py", "from streams.cli.leaks.verb import leaks"),
        ("streams/cli/problems.py", "from streams.cli import exits"),
    ],
)
def test_a_wrong_layer_is_found(path: str, text: str) -> None:
    assert "of the command line it may import" in "\n".join(wrong_layers(module(path, text)))


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(sources()) == ""


def test_nothing_touches_the_world_at_import() -> None:
    assert found(touches_at_import) == ""


def test_modules_and_public_names_say_what_they_are_for() -> None:
    contract = contract_methods(sources())

    assert found(lambda source: undocumented(source, contract)) == ""


def test_modules_and_functions_stay_short() -> None:
    assert found(too_long) == ""


def test_each_package_is_typed_and_tests_are_no_package() -> None:
    assert [name for name in PACKAGES if not (ROOT / name / "py.typed").exists()] == []
    assert list((ROOT / "tests").rglob("__init__.py")) == []


@pytest.mark.parametrize(
    ("path", "text", "complaint"),
    [
        ("schemas/x.py", "from projections.ledger import fold", "schemas/x.py:1 imports projections.ledger; it may import ['schemas']"),
        ("projections/x.py", "def f():\n    import streams.log.base", "projections/x.py:2 imports streams.log.base"),
        ("producers/x.py", "import streams", "producers/x.py:1 imports streams; it may import ['producers', 'schemas']"),
        ("streams/runner.py", "from producers.load import fleet", "streams/runner.py:1 imports producers.load"),
        ("streams/x.py", "from . import y", "imports relatively"),
        ("streams/log/kafka.py", "import apsw", "its home is ('streams/log/sqlite_file.py',)"),
        ("streams/x.py", "from confluent_kafka.admin import AdminClient", "imports confluent_kafka; its home is ('streams/log/kafka',)"),
        ("schemas/x.py", "import requests", "imports requests; its home is not named"),
    ],
)
def test_a_wrong_import_is_found(path: str, text: str, complaint: str) -> None:
    assert complaint in "\n".join(wrong_imports(module(path, text)))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("streams/cli/x.py", "from producers.load import fleet\nimport cyclopts"),
        ("streams/log/sqlite_file.py", "import apsw\nimport msgspec\nimport os.path"),
        ("producers/libvirt_audit.py", "import libvirt\nfrom schemas.audits import HypervisorAudited"),
    ],
)
def test_a_right_import_passes(path: str, text: str) -> None:
    assert list(wrong_imports(module(path, text))) == []


def test_a_circle_of_imports_is_found_be_it_for_types_only() -> None:
    above = module("streams/a.py", "from streams import b")
    below = module("streams/b.py", "if TYPE_CHECKING:\n    from streams.c import C")
    again = module("streams/c.py", "def f():\n    import streams.a")

    assert {"streams.a", "streams.b", "streams.c"} <= set(circles([above, below, again]).split(":")[0].split(" <- "))
    assert circles([above, below]) == ""


@pytest.mark.parametrize(
    "text",
    [
        "import os\nHOME = os.environ['HOME']",
        "from os import environ\nHOME = environ.get('HOME')",
        "from os import getenv as ask\nHOME = ask('HOME')",
        "TEXT = open('x').read()",
        "from pathlib import Path\nTEXT = Path('x').read_text()",
        "import time as t\nSTARTED = t.time()",
        "import time\ndef f(now=time.time()): ...",
        "import random\nclass A:\n    n = random.random()",
        "import apsw\nDB = [apsw.Connection('x')]",
        "import socket\nif True:\n    s = socket.create_connection(('h', 1))",
        "import client\nc = client.make().connect()",
    ],
)
def test_touching_the_world_at_import_is_found(text: str) -> None:
    assert len(list(touches_at_import(module("streams/x.py", text)))) >= 1


@pytest.mark.parametrize(
    "text",
    [
        "import time\ndef f() -> float:\n    return time.time()",
        "import time\nCLOCK = time.time\nNOW = lambda: time.time()",
        "import os\nif __name__ == '__main__':\n    print(os.environ)",
        "import re\nWORD = re.compile('x')",
        "import msgspec\nclass A(msgspec.Struct):\n    x: int = msgspec.field(default_factory=int)",
    ],
)
def test_what_only_names_a_function_passes(text: str) -> None:
    assert list(touches_at_import(module("streams/x.py", text))) == []


def test_missing_docstrings_are_found_unless_a_contract_has_them() -> None:
    base = module("streams/base.py", 'class Log(Protocol):\n    def read(self):\n        """Read it."""')
    source = module("streams/x.py", "def f(): ...\nclass A:\n    def read(self): ...\n    def skip(self): ...\n    def _own(self): ...")

    complaints = list(undocumented(source, contract_methods([base])))

    assert [complaint.split(" has no")[0] for complaint in complaints] == [
        "streams/x.py:1", "streams/x.py:1 f", "streams/x.py:2 A", "streams/x.py:4 A.skip",
    ]  # fmt: skip


def test_what_is_too_long_is_found() -> None:
    long_function = module("streams/x.py", "def f():\n" + "    g()\n" * FUNCTION_LINES_MAX)
    said = module("streams/x.py", 'def f():\n    """Says.\n\n    Much.\n    """\n' + "    g()\n" * (FUNCTION_LINES_MAX - 1))
    long_module = module("streams/x.py", "X = 1\n" * (MODULE_LINES_MAX + 1))

    assert list(too_long(long_function)) == ["streams/x.py:f is 61 lines long, a function may have 60: split it"]
    assert list(too_long(said)) == []
    assert list(too_long(long_module)) == ["streams/x.py is 401 lines long, a module may have 400: split it"]
