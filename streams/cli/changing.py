"""What would be otherwise, as people write it: ratios, a whole fleet file, nodes drained, enabled or added, and the policy to choose by."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Annotated, NamedTuple

from cyclopts import Parameter
from msgspec.structs import replace

from projections.cut import Cut
from projections.ledger import Ledger
from schemas.resources import RESOURCES
from schemas.topics import RESULTS
from streams.cli.fleet import file as fleet_file
from streams.cli.given.asking import Given, Many
from streams.cli.given.documents import file_text, policy_named
from streams.cli.printed.amounts import TITLES
from streams.cli.printed.units import counted
from streams.cli.problems import AnswerIncomplete, UsageProblem
from streams.cli.reading.answers import ends_of, newest_decision, newest_start, policy_text
from streams.cli.reading.state_at import state_at
from streams.cli.reading.there import check_there
from streams.log.base import Log, Partition
from streams.scheduling.loading import PolicyError, from_text
from streams.scheduling.policy import DEFAULT, POLICIES, Policy, digest
from streams.scheduling.what_if import Changes, NodesLike

RESOURCE_NAMES = {TITLES[resource]: resource for resource in RESOURCES}
NODES_ADDED_MAX = 100_000


class ChosenBy(NamedTuple):
    """A policy to choose by, where it is from, and up to where results were looked through for it, if they were."""

    policy: Policy
    source: str
    ends: Mapping[Partition, int] = {}

    def cut(self, cut: Cut) -> Cut:
        """The cut of an answer by it: it names those ends, so that the same start of a scheduler is the newest at it."""
        for (topic, number), end in self.ends.items():
            cut = cut.naming(topic, number, end)
        return cut


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Changing:
    """What would be otherwise; nothing of it is written."""

    ratio: Annotated[Many, Parameter(help="A ratio on every node: vcpus=8, memory=1.5, disk=unlimited; repeatable.")] = ()
    fleet: Annotated[Given, Parameter(help="As if `claimlog fleet apply` had applied this file.")] = ""
    drain: Annotated[Many, Parameter(help="As if this node took nothing new; repeatable.")] = ()
    enable: Annotated[Many, Parameter(help="As if this node were enabled; repeatable.")] = ()
    add: Annotated[Many, Parameter(help="NODE or NODE=COUNT: so many empty nodes more that are like this one; repeatable.")] = ()
    by: Annotated[Given, Parameter(help=f"Choose by this policy: {', '.join(POLICIES)}, or a TOML file.")] = ""

    def changes(self) -> Changes:
        """What these flags change. Raises UsageProblem."""
        for name in self.drain:
            if name in self.enable:
                raise UsageProblem(f"--drain {name} and --enable {name}: a node is one or the other")
        ratios = dict(_ratio(text) for text in self.ratio)
        if len(ratios) < len(self.ratio):
            raise UsageProblem(f"--ratio {' --ratio '.join(self.ratio)}: a resource has one ratio; name each once")
        file = fleet_file.read(file_text(self.fleet, f"--fleet {self.fleet}"), self.fleet) if self.fleet else None
        return Changes(
            settings=None if file is None else partial(fleet_file.wanted, file),
            named=() if file is None else tuple(name for name in fleet_file.unknown_names(file, ()) if not fleet_file.is_pattern(name)),
            ratios_milli=ratios,
            drained=self.drain,
            enabled=self.enable,
            added=tuple(_added(text) for text in self.add),
        )

    def told(self) -> list[str]:
        """The changes in words, the policy included."""
        said = [f"{text.partition('=')[0]} ratio {text.partition('=')[2]}" for text in self.ratio]
        said += [f"{self.fleet} applied"] if self.fleet else []
        said += [f"{name} drained" for name in self.drain] + [f"{name} enabled" for name in self.enable]
        said += [f"{counted(each.count, 'node')} like {each.like} added" for each in map(_added, self.add)]
        return said + ([f"by policy {self.by}"] if self.by else [])

    def policy(self, log: Log, by: Mapping[Partition, int] | None = None, trusted: Collection[str] = ()) -> ChosenBy:
        """The policy to choose by, and where it is from: `--by`, else that of the scheduler that started last, else the default.

        `by` is up to where results are those of the moment that is asked about, if that is not the present: who started later decided
        nothing then. `trusted` are the names of code that a policy in the log may lead to. Where starts have left the log, who answered
        last may tell. Raises UsageProblem, AnswerIncomplete, TopicMismatch for a log without a ledger.
        """
        if self.by:
            return ChosenBy(policy_named(self.by, "--by"), self.by)
        check_there(log, RESULTS)
        ends, then = (ends_of(log), "") if by is None else (by, " by then")
        try:
            started = newest_start(log, ends)
        except AnswerIncomplete as gone:
            if (told := _answered_last(log, ends, trusted)) is None:
                raise AnswerIncomplete(f"{gone}; or name a policy with --by") from None
            return ChosenBy(told[0], f"that of {told[1]}, which answered last{then}", ends)
        if started is None:
            return ChosenBy(DEFAULT, f"the default, as no scheduler {'had' if then else 'has'} started here{then}", ends)
        return ChosenBy(_of(started.policy, started.owner, trusted), f"that of {started.owner}, which started last{then}", ends)


CHANGING = Changing()
"""Nothing otherwise."""


def as_of(log: Log, ledgers: Sequence[Ledger], changes: Changes) -> Changes:
    """The changes for an earlier moment: a file of today may name nodes that were not there yet, of which nothing is otherwise then."""
    then = {name for ledger in ledgers for name in ledger.nodes}
    if then.issuperset(changes.named):
        return changes
    later = set(state_at(log, views=False).node_ids()) - then
    return replace(changes, named=tuple(name for name in changes.named if name not in later))


def _answered_last(log: Log, ends: Mapping[Partition, int], trusted: Collection[str]) -> tuple[Policy, str] | None:
    """The policy of the newest answer and whose that is; None where its text is neither at hand nor one of ours."""
    newest = newest_decision(log, ends)
    if newest is None:
        return None
    owner, decision = newest
    policy = next((ours for ours in POLICIES.values() if digest(ours) == decision.policy_digest), None)
    if policy is None and (text := policy_text(log, decision.policy_digest)) is not None:
        policy = _of(text, owner, trusted)
    return None if policy is None else (policy, owner)


def _of(text: str, owner: str, trusted: Collection[str]) -> Policy:
    try:
        return from_text(text, trusted=trusted)
    except PolicyError as problem:
        raise UsageProblem(f"{RESULTS}: the policy of {owner} cannot be used: {problem}; name one with --by") from None


def _ratio(text: str) -> tuple[str, int | None]:
    name, separator, value = text.partition("=")
    if not separator or name not in RESOURCE_NAMES:
        raise UsageProblem(f"--ratio {text!r}: expected RESOURCE=RATIO, such as memory=1.5; resources: {', '.join(RESOURCE_NAMES)}")
    try:
        ratio: object = value if value == fleet_file.UNLIMITED else Decimal(value)
    except InvalidOperation:
        raise UsageProblem(f"--ratio {text!r}: expected a number such as 1.5, or {fleet_file.UNLIMITED}") from None
    return RESOURCE_NAMES[name], fleet_file.ratio_milli(ratio, f"--ratio {name}")


def _added(text: str) -> NodesLike:
    like, number = (text.rpartition("=")[0], text.rpartition("=")[2]) if "=" in text else (text, "1")
    if not like or not re.fullmatch(r"[0-9]{1,9}", number) or not 1 <= int(number) <= NODES_ADDED_MAX:
        raise UsageProblem(f"--add {text!r}: expected NODE or NODE=COUNT, with a count from 1 to {NODES_ADDED_MAX}")
    return NodesLike(like, int(number))
