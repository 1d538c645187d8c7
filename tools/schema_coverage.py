"""Write the table of docs/structured-output.md: what becomes of JSON-Schema-Test-Suite, keyword by keyword.

python tools/schema_coverage.py          (MINKA_SCHEMA_SUITE names the suite's archive)
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.grammar.suite import Outcome, count, find_suite, groups, outcomes  # noqa: E402

PAGE = ROOT / "docs/structured-output.md"
BEGIN, END = "<!-- coverage -->\n", "<!-- end of coverage -->\n"


def table() -> str:
    """The table's lines. Raises SystemExit without the suite."""
    suite = find_suite()
    if suite is None:
        raise SystemExit("no copy of JSON-Schema-Test-Suite: set MINKA_SCHEMA_SUITE to its archive")
    lines = [
        "| file of the suite | valid: written | not written | invalid: barred | written | schemas refused |",
        "|---|---|---|---|---|---|",
    ]
    shown = (Outcome.REACHED, Outcome.NARROWED, Outcome.BARRED, Outcome.WRONG, Outcome.REFUSED)
    for file in sorted(name for name in groups(suite) if "/" not in name):
        counts = count(outcomes(suite, file))
        lines.append(f"| {file.removesuffix('.json')} | {' | '.join(str(counts[outcome]) for outcome in shown)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Put the table into the page."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE} has no place for the table")
    PAGE.write_text(before + begin + table() + end + after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
