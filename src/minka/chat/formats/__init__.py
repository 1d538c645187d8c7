"""How models write tool calls and reasoning: one file a family, found by its template."""
