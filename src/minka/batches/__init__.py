"""Batch jobs: many requests from a file, computed at the lowest priority, each once. Knows no HTTP."""
