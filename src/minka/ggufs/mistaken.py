"""What was given in place of a GGUF model, told by its name or its first bytes, and what to do about it."""

from __future__ import annotations

import re
from pathlib import Path

SIDECAR = re.compile(r"mmproj|imatrix|(mtp|eagle3|dflash|dspark)-", re.IGNORECASE)
"""Names of files beside a model: projectors, importance matrices, draft models."""

_CONVERT = "get a GGUF of the model (-hf user/repo), or make one with llama.cpp's convert_hf_to_gguf.py"


def in_folder(path: Path) -> str:
    """What to give instead of a folder."""
    names = sorted(file.name for file in path.iterdir())
    models = [name for name in names if name.lower().endswith(".gguf") and not SIDECAR.match(name)]
    if models:
        return f"give the file, such as {path / models[0]}"
    if any(name.endswith((".safetensors", ".bin")) for name in names):
        return f"it has no GGUF file; {_CONVERT}"
    return "give the path of a .gguf file"


def looks_like(start: bytes) -> str:
    """What a file that is no GGUF seems to be from its first bytes, and what to do."""
    text = start.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return "it looks like an HTML page; download the file itself (its link has /resolve/, not /blob/)"
    if text.startswith(b"version https://git-lfs"):
        return "it is a git-lfs pointer; fetch the content with git lfs pull"
    if start[8:10] == b'{"':
        return f"it looks like safetensors weights; {_CONVERT}"
    if start.startswith(b"PK"):
        return "it looks like a zip archive; unpack it, or get a GGUF of the model if it is a PyTorch checkpoint"
    if start[:4] in (b"lmgg", b"tjgg", b"algg", b"fmgg"):
        return "it has the GGML format that came before GGUF; get a GGUF of the model"
    return f"it starts with {start[:4]!r}; give a .gguf file"
