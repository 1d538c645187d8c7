"""Side-by-side benchmarks: Minka and the real llama-server, same flags, same model, same load, taking turns.

`python -m benchmarks` from the root of the repository; the README in this folder says how to read the result.
Knows the servers only by their command line, their routes and `/proc`; imports nothing of Minka.
"""
