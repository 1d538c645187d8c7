"""Minka: serve, chat with and prepare GGUF models; the llama.cpp tool layer in Python.

Importing the package loads nothing: no model library, no web framework.
"""

__version__ = "0.1.0"
