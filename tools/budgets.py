"""Size budgets, so that a file stays one idea and a function fits in the eye.

A file has at most 500 lines, a function at most 60 with its docstring; pure tables are excepted by name.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_FILE = 500
MAX_FUNCTION = 60
TABLES = {"src/minka/params.py"}
"""Files that are mostly rows."""


def complaints() -> list[str]:
    """One line for each file and function that is over its budget."""
    found = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        name, source = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        lines = source.count("\n")
        if lines > MAX_FILE and name not in TABLES:
            found.append(f"{name}: {lines} lines, at most {MAX_FILE}")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION:
                    found.append(f"{name}:{node.lineno}: {node.name} has {length} lines, at most {MAX_FUNCTION}")
    return found


if __name__ == "__main__":
    over = complaints()
    print("\n".join(over) or "budgets: all files and functions are within theirs")
    sys.exit(bool(over))
