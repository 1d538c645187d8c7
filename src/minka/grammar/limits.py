"""What a grammar may cost. Every number is a bound on memory or time that a request can ask for."""

from __future__ import annotations

from llguidance import LLParserLimits

MAX_SOURCE = 1_000_000
"""Bytes of a schema or a grammar."""

FOREIGN = "// from a request\n"
"""In front of a grammar that somebody else wrote: it is compiled where it can be stopped, see `jail`."""

GUARDED = '"title": "guarded"'
"""The same for a schema."""

LIMITS = LLParserLimits(
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=300_000,
    step_max_items=60_000,
    max_items_in_row=10_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)
"""Units: about 50,000 of fuel a millisecond when compiling, 14,000 in a step, and 1 to 2 kB a lexer state."""
