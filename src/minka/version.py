"""The version of the package, for the layers below the one that `minka` itself exports from."""

from __future__ import annotations

VERSION = "0.1.0"
"""That of the project's metadata, as a test checks."""
