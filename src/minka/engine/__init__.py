"""The engine: jobs of token ids in, events out. It knows no messages, no JSON and no HTTP."""
