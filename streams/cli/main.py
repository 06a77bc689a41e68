"""The command `claimlog`: which verbs there are, and how one is found, run and ended.

A verb is one line in VERBS. Its module is imported when it is used, and the overview is printed from this table alone, so
`claimlog --help` needs neither the verbs nor the library that parses their arguments.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from streams.cli.interrupts import imports_spared
from streams.cli.printed.stdout import named, unheard

if TYPE_CHECKING:
    from cyclopts import App


COLUMNS_MIN, COLUMNS_DIGITS_MAX = 20, 4
"""In fewer than about five columns cyclopts wraps its help for ever, and in billions it has no memory for a line."""
INTERRUPTED = 130
"""As `streams.cli.exits.Exit`, which may not be imported yet."""


class Verb(NamedTuple):
    """`target` is `module:function`, or `module:app` for a verb with verbs of its own; `says` is its line in the overview."""

    name: str
    target: str
    says: str


VERBS = (
    Verb("demo", "streams.cli.demo.verb:demo", "the whole system in a quarter of a minute, with nothing but Python"),
    Verb("run", "streams.cli.run:run", "the long-running process: carry observations, fold, publish, place"),
    Verb("nodes", "streams.cli.nodes:nodes", "every node: limit, reported, tracked, claimed, gap and free"),
    Verb("node", "streams.cli.node.verb:app", "one node in full; enable, disable, drain or withdraw it"),
    Verb("claims", "streams.cli.claims:app", "the claims that are held; hold one for longer, give one back"),
    Verb("leaks", "streams.cli.leaks.verb:app", "where claims, life cycles and audits do not agree, and which events made it so"),
    Verb("timeline", "streams.cli.timeline:timeline", "what happened to an instance, a node or a request, and what each record changed"),
    Verb("diff", "streams.cli.diff:diff", "what changed between two moments, and which records made each change"),
    Verb("events", "streams.cli.events:events", "the records themselves; -w as they come"),
    Verb("produce", "streams.cli.produce.verb:app", "facts from libvirt, OpenStack's notifications, a generated load, or a trace"),
    Verb("fleet", "streams.cli.fleet.verb:app", "apply ratios, zones, aggregates and traits from a file; show them"),
    Verb("replay", "streams.cli.replay:replay_verb", "the ledger folded again to any moment; --verify: is all that was published right?"),
    Verb("snapshot", "streams.cli.snapshot:app", "the snapshots that a start begins at: list and verify them, write one"),
    Verb("archive", "streams.cli.archive:archive_verb", "move history below a verified snapshot into files"),
    Verb("copy", "streams.cli.copy:copy_verb", "move a ledger to another host, record by record: SQLite to Kafka, or back"),
    Verb("place", "streams.cli.place:place", "ask for instances to be placed, and wait for the answer"),
    Verb("cancel", "streams.cli.cancel:cancel", "take a request back"),
    Verb("explain", "streams.cli.explain:explain", "why an instance went where it went, or nowhere"),
    Verb("what-if", "streams.cli.what_if:what_if", "the same with other ratios, nodes, policies or numbers; nothing is written"),
    Verb("capacity", "streams.cli.capacity.verb:capacity_verb", "how many more of each flavor fit, where, and what runs out first"),
    Verb("shadow", "streams.cli.shadow.verb:shadow", "a cloud's requests through our scheduler: where Nova chose otherwise, and why"),
    Verb("doctor", "streams.cli.doctor.verb:doctor", "is everything as it should be, and if not, what to do"),
    Verb("dead-letters", "streams.cli.dead_letters:app", "messages that count for nothing, why, and their way back"),
    Verb("topics", "streams.cli.topics:app", "make the topics of a ledger, and say where those of a cluster differ"),
    Verb("rules", "streams.cli.rules:app", "which rules the ledger follows; move it to the next version"),
    Verb("schemas", "streams.cli.schemas:app", "the JSON Schema of every record"),
    Verb("completion", "streams.cli.completion:completion", "a script with which bash, zsh or fish complete all of this"),
)

HELP = """\
Usage: claimlog VERB [ARGS...]

Every fact, claim and decision about a fleet of hypervisors is a record on a log; every number here is a fold over it.

Verbs (claimlog VERB --help):
{verbs}

Common to them:
  --log LOG           sqlite:PATH, kafka://HOST:PORT[,HOST:PORT][/PREFIX], FILE.jsonl, or - for JSON lines on stdin;
                      default: the environment's CLAIMLOG_LOG
  -X KEY=VALUE        a setting of the Kafka client, such as security.protocol=SASL_SSL; repeatable. In the environment
                      CLAIMLOG_KAFKA_SECURITY_PROTOCOL, or that with _FILE for a file with the value (passwords);
                      CLAIMLOG_KAFKA_CONFIG names a file of settings
  --at, --since, --until
                      2026-11-21T10:42:07Z, 2026-11-21, -2h, unix seconds or milliseconds, now, or the cut:... of any answer
  -o FORMAT           table, wide, json (one document with cut and items), jsonl, value; -c COLUMN and --sort [-]COLUMN choose
  -w, --watch         nodes, node show, claims list, leaks, timeline, capacity, doctor: the answer again every 2 s
                      (--interval SECONDS) until interrupted; events: the records as they come
  --version           print the version

Exit codes: 0 done, 1 error, 2 usage, 3 findings, 4 cannot be placed, 5 log unreachable, 6 answer incomplete, 130 interrupted
"""


def overview(verbs: Sequence[Verb]) -> str:
    """What `claimlog --help` prints."""
    width = max((len(verb.name) for verb in verbs), default=0)
    return HELP.format(verbs="\n".join(f"  {verb.name:<{width}}  {verb.says}" for verb in verbs))


def assembled(verbs: Sequence[Verb]) -> App:
    """The parser, which imports a verb's module when it is called."""
    from cyclopts import App

    app = App(
        name="claimlog",
        help_format="plaintext",
        version_flags=(),
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        result_action="return_value",
    )
    for verb in verbs:
        # Without `help`: the verb tells its own, longer story.
        app.command(verb.target, name=verb.name)
    return app


def run(arguments: Sequence[str], verbs: Sequence[Verb] = VERBS) -> int:
    """Run one command line and return its exit code; nothing is raised but SystemExit from a verb's own `sys.exit`."""
    from streams.cli.exits import guarded
    from streams.cli.reading.open_log import with_settings

    def dispatch() -> int | None:
        _check_text(arguments)
        words, settings = _parted(arguments)
        if not words or _asks_for_all(*words[:2]):
            sys.stdout.write(overview(verbs))
            return None
        if words[0] in {"--version", "version"}:
            from streams.cli.version import installed_version

            print(f"claimlog {installed_version('(a checkout that is not installed; `make setup` installs it)')}")
            return None
        rest = [*words[1:], "--help"] if words[0] == "help" else words
        if settings:
            _check_settings(rest)
        with with_settings(settings):
            return _called(rest, verbs)

    return guarded(dispatch, sys.stderr)


def _asks_for_all(first: str, second: str = "") -> bool:
    """Whether a command line that begins so asks for the help of no verb of its own: `help` may stand before one."""
    return first in {"--help", "-h"} or (first == "help" and (second in {"", "help"} or second.startswith("-")))


def _check_text(arguments: Sequence[str]) -> None:
    """Raises UsageProblem for an argument with bytes that are no text in the caller's locale; no id, key or path in a log has such."""
    from streams.cli.problems import UsageProblem

    for argument in arguments:
        if any("\udc80" <= char <= "\udcff" for char in argument):
            raise UsageProblem(f"{argument!a} is no text in this locale; expected UTF-8, and a locale that says so, such as LC_ALL=C.UTF-8")


def _parted(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """The arguments without `-X key=value`, and what these give. Raises UsageProblem."""
    from streams.cli.problems import UsageProblem

    rest: list[str] = []
    settings: list[str] = []
    left = iter(arguments)
    for argument in left:
        if argument == "--":
            return [*rest, argument, *left], settings
        if not argument.startswith("-X"):
            rest.append(argument)
            continue
        setting = argument.removeprefix("-X") or next(left, "")
        if "=" not in setting:  # not shown: it may be a password
            raise UsageProblem("-X: expected KEY=VALUE, such as -X security.protocol=SASL_SSL")
        settings.append(setting)
    return rest, settings


def _check_settings(words: Sequence[str]) -> None:
    """Raises UsageProblem for `-X` beside a command whose words name no log on Kafka, and whose log is none.

    Which log a verb opens besides its own is known to the verb alone (the target of `copy`, `--from` of `produce openstack`).
    """
    from streams.cli.reading.open_log import check_on_kafka

    flags = words[: words.index("--")] if "--" in words else words
    if {"--help", "-h"}.isdisjoint(flags) and not any("kafka:" in word for word in words):
        check_on_kafka("-X", _log_of(flags))


def _log_of(words: Sequence[str]) -> str | None:
    """What `--log` gives."""
    for word, following in pairwise([*words, ""]):
        if word == "--log" or word.startswith("--log="):
            return following if word == "--log" else word.removeprefix("--log=")
    return None


def _called(arguments: Sequence[str], verbs: Sequence[Verb]) -> int | None:
    from cyclopts import CycloptsError, UnknownOptionError, UnusedCliTokensError

    from streams.cli.given.words import as_names, behind_dashes
    from streams.cli.problems import UsageProblem

    names = behind_dashes(arguments)
    if arguments.count("-") > 1:
        raise UsageProblem("- stands there more than once, and stdin is one thing only: name a file for the others")
    if arguments[0].startswith("-"):
        raise UsageProblem(f"a verb comes first and its flags behind it: claimlog nodes {arguments[0]} …\nSee: claimlog --help")
    try:
        app = assembled(verbs)
        if len(arguments) == 1 or arguments[1:] in (["--help"], ["-h"]):
            _load_children(app, arguments[0])
        with as_names(names):
            code: int | None = app(list(arguments))
    except CycloptsError as problem:
        chain = problem.command_chain or _verb(arguments[0], verbs)
        unused = problem.unused_tokens if isinstance(problem, UnusedCliTokensError) else None
        said = f"one word too many: {' '.join(map(repr, unused))}" if unused else str(problem)
        if isinstance(problem, UnknownOptionError) and (flag := problem.token.keyword or problem.token.value) in names:
            said = f"{flag} stands behind --, where every word is a name; flags go before it"
        raise UsageProblem(f"{said}\nSee: {' '.join(['claimlog', *chain, '--help'])}") from None
    return code


def _verb(word: str, verbs: Sequence[Verb]) -> list[str]:
    """The word, if it is a verb."""
    return [word] if word in {known.name for known in verbs} else []


def _load_children(app: App, verb: str) -> None:
    """Import the verbs of a verb's own: the list of them has a line of help only for those that are loaded."""
    from cyclopts import App

    if verb in app and isinstance(own := app[verb], App):
        for name in own:
            own[name]


def _pass_over_no_width() -> None:
    """A width that is none, such as the COLUMNS=0 of some containers' terminals, is as good as not known; a terminal's own is made more."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and (len(columns) > COLUMNS_DIGITS_MAX or int(columns) < COLUMNS_MIN):
        del os.environ["COLUMNS"]
    for number in range(3):
        with suppress(OSError):
            if "COLUMNS" not in os.environ and 0 < os.get_terminal_size(number).columns < COLUMNS_MIN:
                os.environ["COLUMNS"] = str(COLUMNS_MIN)


def _open_closed_streams() -> None:
    """Put /dev/null behind standard streams that the caller closed (`>&-`, some timers and daemons).

    Else Python has None for them, and the next file opened takes the number: what is meant for people would be written into it.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one
            setattr(sys, name, os.fdopen(opened, mode))


def _speak_utf8() -> None:
    """What is said is UTF-8 whatever the locale, and what becomes of it is said of stdout by its name."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout = named(sys.stdout)
    if isinstance(sys.stderr, TextIOWrapper):
        sys.stderr = unheard(sys.stderr)


def main() -> None:
    """The console script."""
    try:
        with imports_spared():
            _open_closed_streams()
            _speak_utf8()
            _pass_over_no_width()
            code = run(sys.argv[1:])
    except KeyboardInterrupt:
        # Before or after what says how a command ends.
        code = INTERRUPTED
    _leave(code)


def _leave(code: int) -> NoReturn:
    """End the process. What a verb had to say and to close is said and closed, so an interrupt comes too late to change its code.

    A thread that is left stands in a client's or a library's own code, which it could not be called back from (librdkafka's `close`,
    libvirt's events): as Python takes itself apart beneath it, the process may die of that with a signal instead of its exit code.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if any(thread.daemon for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
