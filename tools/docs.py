"""Write docs/parameters.md from the parameter table, or with --check say whether it is up to date.

Usage: python tools/docs.py [--check]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from minka.commands.arguments import default_text
from minka.params import (
    ACCEPTED_FIELDS,
    GROUPS,
    IGNORED,
    NOT_YET,
    UNSUPPORTED,
    UNSUPPORTED_FIELDS,
    Row,
    rows,
)

TARGET = Path(__file__).resolve().parent.parent / "docs" / "parameters.md"

INTRODUCTION = """\
# Parameters

<!-- Generated from src/minka/params.py by tools/docs.py: change the table and run it again. -->

What can be set, and where: by a flag of `minka serve` and the other commands, by an environment variable, by a field of
a request. Spellings, ranges and defaults are llama-server's, so that its command lines and its clients work unchanged;
† marks what is Minka's own.

- A request beats the command line, the command line beats the environment, the environment beats the default.
- In a long flag `_` is the same as `-`; `--flag value` and `--flag=value` are the same; flags are not abbreviated. The
  last use of a flag wins, but for those marked *repeatable*, where each use adds.
- A variable for something that is on or off takes on, enabled, true, 1 or off, disabled, false, 0. If
  `LLAMA_ARG_NO_X` is set, whatever to, then X is off.
- A number outside its range is an error, on the command line as in a request (status 400). *Limited* means that it is
  set to the nearest end of the range instead.
- In a request, `null` is the same as an absent field. Of several names of a field the first one wins.
"""


def cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def code(names: Sequence[str]) -> str:
    return " ".join(f"`{cell(name)}`" for name in names)


def table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def type_text(row: Row) -> str:
    lone = "string or " if row.param.lone else ""
    return cell(f"{lone}{row.type}" + (f": {row.range}" if row.range else ""))


def optional_code(text: str | None) -> str:
    return code([text]) if text else ""


def row_cells(row: Row) -> Iterator[list[str]]:
    param = row.param
    notes = [cell(param.doc)]
    notes += ["(repeatable)"] if param.repeat else []
    notes += ["†"] if param.own else []
    spelled = [code([*param.flags, *param.negated]), optional_code(param.env), code(param.http)]
    yield [code([row.name]), *spelled, type_text(row), optional_code(default_text(row)), " ".join(notes)]
    for also in param.also:
        yield ["", code(also.flags), optional_code(also.env), "", str(also.syntax), "", cell(also.doc)]


def parameters() -> Iterator[str]:
    for cls, title in GROUPS.items():
        yield f"## {title}\n\n{cls.__doc__}\n"
        body = [cells for row in rows(cls) for cells in row_cells(row)]
        yield table(["name", "flags", "environment", "request field", "type", "default", "meaning"], body)


def without_effect() -> Iterator[str]:
    yield "## Flags of llama-server that have no effect\n\nThey are accepted, with any value.\n"
    body = [[code([*flag.flags, *flag.negated]), optional_code(flag.env), cell(flag.note)] for flag in IGNORED]
    yield table(["flags", "environment", "why"], body)


def unsupported_flags() -> Iterator[str]:
    yield "## Flags of llama-server that are not supported yet\n"
    yield (
        "Using one is an error, which names it, and the exit code is 2; setting its variable is only warned of. What\n"
        "the last column lists is accepted, because it asks for what Minka does anyway.\n"
    )
    body = []
    for flag in UNSUPPORTED:
        if flag.note == NOT_YET:
            off = [f"{flag.flags[0]} {value or repr(value)}" for value in flag.off]
            body.append([code(flag.flags), optional_code(flag.env), code([*flag.negated, *off])])
    yield table(["flags", "environment", "accepted"], body)
    yield "These are refused as well, with what to do instead; the last ones llama-server itself has removed:\n"
    instead = [flag for flag in UNSUPPORTED if flag.note != NOT_YET]
    yield table(
        ["flags", "environment", "error"],
        [[code(flag.flags), optional_code(flag.env), cell(flag.note)] for flag in instead],
    )


def field_table(fields: Mapping[str, tuple[object, ...] | None]) -> str:
    body = []
    for name, values in fields.items():
        accepted = "any value" if values is None else " ".join(code([json.dumps(value)]) for value in values)
        body.append([code([name]), accepted])
    return table(["field", "accepted"], body)


def request_fields() -> Iterator[str]:
    yield "## Request fields that are not supported yet\n"
    yield (
        "A request that sets one is answered with status 400, which names the field, unless the value asks for\n"
        "nothing. An endpoint that does support a field says so in its own documentation.\n"
    )
    yield field_table(UNSUPPORTED_FIELDS)
    yield "## Request fields that are accepted and ignored\n"
    yield field_table(ACCEPTED_FIELDS)


def page() -> str:
    return "\n".join([INTRODUCTION, *parameters(), *without_effect(), *unsupported_flags(), *request_fields()])


def main(arguments: Sequence[str]) -> int:
    text = page()
    if "--check" not in arguments:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == text:
        return 0
    print(f"docs/{TARGET.name} is not what the parameter table says: run python tools/docs.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
