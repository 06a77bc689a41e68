"""How a flavor's extra spec is compared with what a host has: the operators of Nova's extra-spec grammar.

Source of the rules: Nova 34, scheduler filters' extra specs; `=` means "at least" there, on purpose and for ever.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

_NUMERIC: Mapping[str, Callable[[float, float], bool]] = {
    "=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
}
_TEXTUAL: Mapping[str, Callable[[str, str], bool]] = {
    "s==": operator.eq,
    "s!=": operator.ne,
    "s<": operator.lt,
    "s<=": operator.le,
    "s>": operator.gt,
    "s>=": operator.ge,
    "<in>": operator.contains,
}


def match(value: str | None, requirement: str) -> bool:
    """Whether a host's `value` meets a flavor's `requirement`, such as `>= 2`, `<or> amd <or> intel` or plain text, which must be equal.

    Only the word after an operator counts, `<all-in>` and `<or>` excepted. What cannot be compared as a number meets no numeric
    requirement (Nova raises there, and the host is lost with it). None is a value the host does not have.
    """
    word, *operands = requirement.split() or [""]
    if word == "<or>":
        return value is not None and value in operands[::2]
    if word == "<all-in>":
        return value is not None and bool(operands) and all(operand in value for operand in operands)
    if word not in _NUMERIC and word not in _TEXTUAL:
        return value == requirement
    if value is None or not operands:
        return False
    if word in _TEXTUAL:
        return _TEXTUAL[word](value, operands[0])
    try:
        return _NUMERIC[word](float(value), float(operands[0]))
    except ValueError:
        return False
