"""The style sheet of the report: two colour schemes, bars and tables. A constant, no logic."""

from __future__ import annotations

_LIGHT = ("#3b6fd4", "#d97706", "#0f9d76", "#c2417c", "#7a5cc9", "#8a8f1f", "#c0492f", "#2f98b8")
_DARK = ("#7aa2f7", "#e5a04b", "#4cc9a0", "#e87aac", "#ae97f0", "#c3c85a", "#ec8268", "#67c0de")

N_COLOURS = len(_LIGHT)
"""Tensor types that get a colour of their own; the rest share a grey one, which is the last class."""


def _variables(colours: tuple[str, ...], grey: str) -> str:
    return " ".join(f"--c{i}: {colour};" for i, colour in enumerate((*colours, grey)))


STYLE = f"""
:root {{
  color-scheme: light dark;
  --page: #fbfbfa; --card: #ffffff; --text: #1d1f23; --soft: #656b76; --line: #e4e5e8;
  {_variables(_LIGHT, "#9a9fa8")}
}}
@media (prefers-color-scheme: dark) {{
  :root {{
    --page: #15171b; --card: #1d2025; --text: #e6e8ec; --soft: #9aa1ad; --line: #30343c;
    {_variables(_DARK, "#757b86")}
  }}
}}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; }}
main {{ max-width: 1060px; margin: 0 auto; padding: 32px 20px 64px; }}
header h1 {{ margin: 0; font-size: 30px; line-height: 1.2; overflow-wrap: anywhere; }}
header p {{ margin: 6px 0 24px; color: var(--soft); }}
section, .tiles div {{ background: var(--card); border: 1px solid var(--line); border-radius: 10px; }}
section {{ padding: 18px 20px; margin: 16px 0; }}
h2 {{ margin: 0 0 12px; font-size: 17px; }}
code, pre {{ font: 13px/1.5 ui-monospace, "Cascadia Mono", Menlo, Consolas, monospace; overflow-wrap: anywhere; }}
pre {{ margin: 8px 0 0; padding: 10px; background: var(--page); border-radius: 6px; white-space: pre-wrap; }}
summary {{ cursor: pointer; }}
.tiles {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(104px, 1fr)); gap: 10px; margin: 0; }}
.tiles div {{ padding: 10px 12px; }}
.tiles dt {{ color: var(--soft); font-size: 12.5px; white-space: nowrap; }}
.tiles dd {{ margin: 0; font-size: 17px; font-weight: 600; white-space: nowrap; }}
table {{ border-collapse: collapse; width: 100%; }}
th {{ text-align: left; font-weight: 500; color: var(--soft); }}
td, th {{ padding: 5px 14px 5px 0; vertical-align: top; }}
.numbers {{ width: auto; margin-top: 10px; }}
.numbers td {{ padding-top: 1px; padding-bottom: 1px; }}
.numbers td:first-child {{ white-space: nowrap; }}
.numbers td:not(:first-child), .numbers th:not(:first-child), .tensors td:last-child, .tensors th:last-child,
.bars td:not(.bar) {{ text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }}
.list td, .list th {{ border-bottom: 1px solid var(--line); }}
.list tr:last-child td {{ border-bottom: 0; }}
.bars th, .bars td {{ padding: 2px 12px 2px 0; vertical-align: middle; }}
.bars th {{ color: var(--text); font: 13px/1.5 ui-monospace, Menlo, Consolas, monospace; }}
.bars th {{ white-space: nowrap; width: 1%; }}
.bars td:not(.bar) {{ width: 1%; font-size: 13.5px; }}
.bars td:last-child, .bars tr:first-child td {{ color: var(--soft); }}
.bars td:last-child {{ padding-right: 0; }}
.bar svg, .whole svg {{ display: block; border-radius: 3px; }}
.gap {{ fill: var(--card); }}
.key {{ margin-right: 8px; border-radius: 3px; vertical-align: -1px; }}
.tensors {{ margin-top: 10px; }}
{" ".join(f".c{i} {{ fill: var(--c{i}); }}" for i in range(N_COLOURS + 1))}
"""
