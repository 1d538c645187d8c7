"""What batch tests share: files of requests, and batches of a store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

from minka.batches.store import Store
from minka.protocols.batches import BatchFacts, Wanted

URL = "/v1/completions"


def request(custom_id: str, url: str = URL, **body: object) -> dict[str, object]:
    """A line of a batch: a short greedy completion unless `body` says something else."""
    body = {"prompt": custom_id, "max_tokens": 4, "temperature": 0, **body}
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def jsonl(*entries: object) -> bytes:
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)


def entries(path: Path) -> list[dict[str, object]]:
    """The lines of an output or error file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def add_batch(store: Store, *lines: object, endpoint: str = URL, seconds: int = 3600, tenant: str = "") -> BatchFacts:
    """A new batch with an input file of its own."""

    def write(out: BinaryIO) -> None:
        out.write(jsonl(*lines))

    file = store.add_file("in.jsonl", "batch", write, tenant=tenant)
    return store.add_batch(Wanted(endpoint, file.id, "1h", seconds, {"of": "tests"}), tenant)
