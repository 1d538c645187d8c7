"""GGUF surgery: read, check, compare, hash, split, merge and rewrite model files, all callable from Python.

`read.open_gguf` is the way in, `atomic` the way out; the other modules are one action each. Knows no command line, no
engine and no libllama. Tables come from the format's sources; dequantising is the PyPI package `gguf`'s.
"""
