"""Chat: messages in, prompt text out. Knows messages and templates, never an engine, a socket or a wire protocol."""
