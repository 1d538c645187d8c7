"""A model at a terminal: the conversation, its commands, the keyboard, the screen. Knows no HTTP."""
