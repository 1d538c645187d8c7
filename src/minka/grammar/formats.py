"""JSON Schema's string formats as regular expressions that a grammar can hold.

Each one matches strings that every validator takes; rare spellings (a leap second, a year of four zeros, a name of a
hundred labels) are left out. All of them are bounded in length where the format is.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_YEAR = r"[1-9][0-9]{3}"
_LEAP_YEAR = r"(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = (
    rf"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    rf"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"

# No two dashes in a row: that would be a name in Punycode, which has rules of its own.
_LABEL = r"[a-zA-Z0-9]{1,30}(?:-[a-zA-Z0-9]{1,15}){0,2}"
_HOSTNAME = rf"{_LABEL}(?:\.{_LABEL}){{0,5}}"
_ATOM = r"[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]{1,15}"
_EMAIL = rf"{_ATOM}(?:\.{_ATOM}){{0,3}}@{_LABEL}(?:\.{_LABEL}){{1,4}}"

_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"(?:{_BYTE}\.){{3}}{_BYTE}"
_H16 = r"[0-9a-fA-F]{1,4}"
_IPV6 = "|".join(
    [
        rf"(?:{_H16}:){{7}}{_H16}",
        r"::",
        rf"::(?:{_H16}:){{0,6}}{_H16}",
        *(rf"(?:{_H16}:){{{left}}}:(?:{_H16}:){{0,{6 - left}}}{_H16}" for left in range(1, 7)),
        *(rf"(?:{_H16}:){{{left}}}:" for left in range(1, 8)),
    ]
)
_HEX = "[0-9a-fA-F]"
_UUID = rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"


def _uuid(version: int) -> str:
    return rf"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}"


_CLOCK = r"T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)"
_DAYS = r"(?:[0-9]{1,9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,9}D)"
_DURATION = rf"P(?:{_DAYS}(?:{_CLOCK})?|{_CLOCK}|[0-9]{{1,9}}W)"

_PCHAR = r"(?:[a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
_SEGMENTS = rf"(?:/{_PCHAR}*)*"
_TAIL = rf"(?:\?(?:{_PCHAR}|[/?])*)?(?:#(?:{_PCHAR}|[/?])*)?"
_AUTHORITY = rf"//(?:{_HOSTNAME}|{_IPV4})(?::[0-9]{{1,5}})?"
_URI = rf"[a-zA-Z][a-zA-Z0-9+.-]{{0,15}}:(?:{_AUTHORITY}{_SEGMENTS}|{_PCHAR}+{_SEGMENTS}){_TAIL}"

PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        "date": _DATE,
        "time": _TIME,
        "date-time": rf"{_DATE}T{_TIME}",
        "duration": _DURATION,
        "email": _EMAIL,
        "hostname": _HOSTNAME,
        "ipv4": _IPV4,
        "ipv6": _IPV6,
        "uuid": _UUID,
        "uri": _URI,
        "base64": r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
        **{f"uuid{version}": _uuid(version) for version in range(1, 9)},
        "json-pointer": r"(?:/(?:[^~/\u0000-\u001f\u007f]|~[01])*)*",
    }
)
"""The formats that are enforced; any other is an annotation, and an error where `strict` is asked for and no `pattern`
says what it means."""

ANY_TEXT = frozenset({"binary", "password", "path"})
"""Formats that every text has: they say how it is shown or used. Pydantic writes them for bytes, secrets and paths."""


def pattern(name: str) -> str:
    """The format as the value of the keyword `pattern`: anchored at both ends."""
    return f"^(?:{PATTERNS[name]})$"
