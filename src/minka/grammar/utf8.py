"""Whether bytes end between two characters."""

from __future__ import annotations


def is_complete(tail: bytes) -> bool:
    """Whether the last character of a UTF-8 text is all there; `tail` is its last three bytes or more."""
    for back in range(1, min(4, len(tail) + 1)):
        byte = tail[-back]
        if byte < 0x80:
            return True
        if byte >= 0xC0:
            return back >= (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4)
    return True
