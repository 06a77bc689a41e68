"""A policy from outside (TOML, a dictionary, the text in the log), with errors that say what is known."""

from __future__ import annotations

import tomllib
from codecs import BOM_UTF8
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any

import msgspec

from schemas.aliases import check_kinds, known_aliases
from schemas.claims import NODES_MAX
from schemas.pinning import WantsError
from streams.scheduling.custom import is_custom
from streams.scheduling.custom_error import CustomError, NowhereError
from streams.scheduling.filters import FILTERS, filters_of
from streams.scheduling.options import MULTIPLIERS, NUMBER_MAX, Options, setting
from streams.scheduling.policy import POLICIES, Policy
from streams.scheduling.weighers import WEIGHERS, weigher_of


class PolicyError(ValueError):
    """The policy cannot be used: the message names the place, what was expected and what is known."""


class NotVouchedFor(PolicyError):
    """A policy in the log names code of its own, and nobody who reads the log has said that it may be run."""


def named(text: str, read: Callable[[str], str]) -> Policy:
    """The policy with this name, or in the TOML file at this path, which `read` reads. Raises PolicyError."""
    if text in POLICIES:
        return POLICIES[text]
    try:
        return from_toml(read(text), source=text)
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(
            f"{text}: {getattr(error, 'strerror', None) or error}; expected a TOML file, or one of {', '.join(POLICIES)}"
        ) from None


def from_toml(text: str, *, source: str) -> Policy:
    """The policy in a TOML text; keys left out have their defaults. `source` is its name in messages. Raises PolicyError."""
    try:
        values = tomllib.loads(text.removeprefix(BOM_UTF8.decode()))
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"{source}: not TOML: {error}") from None
    except RecursionError:
        raise PolicyError(f"{source}: nested too deep to be a policy") from None
    except ValueError:  # thousands of digits: tomllib lets what reads numbers speak
        raise PolicyError(f"{source}: a number in it is too large to be read") from None
    return from_dict(values, source=source)


def from_dict(values: Mapping[str, Any], *, source: str) -> Policy:
    """The policy in a dictionary. Raises PolicyError."""
    _known(values, Policy.__struct_fields__, "key", source)
    if isinstance(options := values.get("options", {}), Mapping):
        _known_options(options, source)
    try:
        policy = msgspec.convert(dict(values), Policy)
    except msgspec.ValidationError as error:
        raise PolicyError(f"{source}: {error}") from None
    policy = checked(policy, source=source)
    try:
        check_kinds(policy.options.pci_alias)
    except WantsError as error:
        raise PolicyError(f"{source}: options: {error}") from None
    return policy


def from_text(text: str, *, trusted: Collection[str] = ()) -> Policy:
    """The policy that a `SchedulerStarted` carries. Raises PolicyError; NotVouchedFor, which is one, for code that nobody trusts.

    Code is imported by names in it only if they are `trusted`: whoever may write a result must not choose what a reader of it runs.
    """
    source = "the policy in the log"
    try:
        policy = msgspec.json.decode(text, type=Policy)
    except msgspec.DecodeError as error:
        raise PolicyError(f"{source}: {error}; it was written by another version of claimlog") from None
    for name in sorted(code_named(policy)):
        if name not in trusted:
            raise NotVouchedFor(f"{source}: it names code of its own, {name!r}, which is not run on the word of a log")
    return checked(policy, source=source)


def code_named(policy: Policy) -> frozenset[str]:
    """The names in a policy that lead to code from outside."""
    return frozenset(filter(is_custom, (*policy.filters, *(each.weigher for each in policy.weighers))))


def checked(policy: Policy, *, source: str) -> Policy:
    """`policy` itself, if every name in it is known and every number usable. Raises PolicyError."""
    policy = _own_names(policy)
    _known([name for name in policy.filters if not is_custom(name)], FILTERS, "filter", source)
    _known([each.weigher for each in policy.weighers if not is_custom(each.weigher)], WEIGHERS, "weigher", source)
    _led(lambda: filters_of(policy), FILTERS, "filter", source)
    for each in policy.weighers:
        _led(partial(weigher_of, each.weigher), WEIGHERS, "weigher", source)
    for kind, names in (("filter", policy.filters), ("weigher", [each.weigher for each in policy.weighers])):
        twice = sorted({name for name in names if list(names).count(name) > 1})
        if twice:
            raise PolicyError(f"{source}: {kind} {twice[0]!r} is named twice; once is enough")
    for each in policy.weighers:
        if not abs(each.factor) <= NUMBER_MAX:
            raise PolicyError(f"{source}: weigher {each.weigher!r}: expected a multiplier up to {NUMBER_MAX:g}, got {each.multiplier}")
    if not 0 <= policy.alternates_max < NODES_MAX:
        raise PolicyError(f"{source}: alternates_max: expected 0 to {NODES_MAX - 1}, got {policy.alternates_max}")
    _check_options(policy, source)
    return policy


def _own_names(policy: Policy) -> Policy:
    """Nova's class paths as our names; the policy itself if it has none."""
    filters = tuple(_own_name(name, FILTERS) for name in policy.filters)
    weighers = tuple(msgspec.structs.replace(each, weigher=_own_name(each.weigher, WEIGHERS)) for each in policy.weighers)
    if (filters, weighers) == (policy.filters, policy.weighers):
        return policy
    return msgspec.structs.replace(policy, filters=filters, weighers=weighers)


def _own_name(name: str, known: Collection[str]) -> str:
    last = name.rpartition(".")[2]
    return last if name.startswith("nova.") and last in known else name


def _check_options(policy: Policy, source: str) -> None:
    try:
        known_aliases(policy.options.pci_alias)
    except WantsError as error:
        raise PolicyError(f"{source}: options: {error}") from None
    options, weighers = policy.options, {each.weigher for each in policy.weighers}
    for text in (*options.weight_setting, *options.image_props_weight_setting):
        if setting(text) is None:
            raise PolicyError(f"{source}: options: expected name=ratio in a weight setting, got {text!r}")
    for name in ("max_io_ops_per_host", "max_instances_per_host", "host_subset_size", "metrics_step_milli", "io_ops_step"):
        if getattr(options, name) < 1:
            raise PolicyError(f"{source}: options: {name}: expected at least 1, got {getattr(options, name)}")
    if not abs(options.weight_of_unavailable) <= NUMBER_MAX:
        found = options.weight_of_unavailable
        raise PolicyError(f"{source}: options: weight_of_unavailable: expected a number up to {NUMBER_MAX:g}, got {found}")
    if "MetricsWeigher" in weighers and options.weight_setting and options.required and "MetricsFilter" not in policy.filters:
        raise PolicyError(f"{source}: options: MetricsWeigher requires every metric; add MetricsFilter to the filters, or required = false")


_READ_BY: Mapping[str, tuple[str, ...]] = {
    "max_io_ops_per_host": ("IoOpsFilter", "AggregateIoOpsFilter"),
    "max_instances_per_host": ("NumInstancesFilter", "AggregateNumInstancesFilter"),
    "isolated_images": ("IsolatedHostsFilter",),
    "isolated_hosts": ("IsolatedHostsFilter",),
    "restrict_isolated_hosts_to_isolated_images": ("IsolatedHostsFilter",),
    "aggregate_image_properties_isolation_namespace": ("AggregateImagePropertiesIsolation",),
    "aggregate_image_properties_isolation_separator": ("AggregateImagePropertiesIsolation",),
    "image_properties_default_architecture": ("ImagePropertiesFilter",),
    "weight_setting": ("MetricsWeigher", "MetricsFilter"),
    "required": ("MetricsWeigher",),
    "weight_of_unavailable": ("MetricsWeigher",),
    "metrics_step_milli": ("MetricsWeigher",),
    "image_props_weight_setting": ("ImagePropertiesWeigher",),
    "io_ops_step": ("IoOpsWeigher",),
}
"""The filters and weighers that read an option; all others are read whatever a policy names."""


def without_effect(policy: Policy) -> tuple[str, ...]:
    """Options that are set and that nothing in the policy reads, in words. Code from outside may read any."""
    if code_named(policy):
        return ()
    names, defaults = {*policy.filters, *(each.weigher for each in policy.weighers)}, Options()
    return tuple(
        [
            f"{option} is set and has no effect without {' or '.join(readers)}"
            for option, readers in _READ_BY.items()
            if getattr(policy.options, option) != getattr(defaults, option) and names.isdisjoint(readers)
        ]
    )


def _known_options(options: Mapping[str, Any], source: str) -> None:
    for weigher, (name, _) in MULTIPLIERS.items():
        if name in options:
            raise PolicyError(f"{source}: option {name!r} is not known; a multiplier stands beside its weigher: [[weighers]], {weigher}")
    _known(options, Options.__struct_fields__, "option", source)


def _known(names: Iterable[str], known: Iterable[str], kind: str, source: str) -> None:
    for name in names:
        if name not in known:
            raise PolicyError(f"{source}: {kind} {name!r} is not known; known: {', '.join(known)}{_nearest(name, known)}")


def _nearest(name: str, known: Iterable[str]) -> str:
    close = get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _led(follow: Callable[[], object], known: Iterable[str], kind: str, source: str) -> None:
    """Follow names to code from outside. One that leads nowhere may have been meant for a known one under a path of its own."""
    try:
        follow()
    except NowhereError as error:
        last = error.name.replace(":", ".").rpartition(".")[2]
        hint = _nearest(last, known)
        if last in known:
            hint = f"; {last!r} is known by that name alone, write that"
        elif last == "all_filters":  # Nova's word for whatever may be named, in another option.
            hint = "; all of these may be named without it, write those that you want"
        raise PolicyError(f"{source}: {kind} {error}; known: {', '.join(known)}{hint}") from None
    except CustomError as error:
        raise PolicyError(f"{source}: {kind} {error}") from None
