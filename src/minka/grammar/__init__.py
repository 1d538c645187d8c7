"""Constrained output: what a text must match, as a grammar, and the matchers that hold a model to it.

Everything is made of Lark rule bodies (`bodies`), so that a schema, a regex or a GBNF grammar can be a part of a larger
grammar; `bodies.source` makes a whole one, `compiler.Grammars` compiles it. Nothing here knows JSON of a wire API, chat
or libllama.
"""
