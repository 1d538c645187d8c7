"""States cut into blocks: against libllama itself with tiny models, and against states written by hand."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from minka.errors import NativeError
from minka.native.context import Context
from minka.native.model import Model
from minka.native.protocol import Decoded
from minka.native.state import KvBlock, StateFormat
from minka.native.state_layouts import adopt
from minka.params import ContextParams, ModelParams
from minka.types import Tokenizer
from tests import tiny
from tests.fakes import FakeBackend
from tests.tiny_file import TinyFile
from tests.tiny_fixtures import TinyModels
from tests.tiny_vocab import spm_vocab

TOKENS = tuple(np.random.default_rng(7).integers(3, 500, 100).tolist())
KINDS = (
    ("f16", "f16", "on"),
    ("f16", "f16", "off"),
    ("f32", "f32", "on"),
    ("f32", "f32", "off"),
    ("bf16", "bf16", "on"),
    ("bf16", "bf16", "off"),
    ("q8_0", "q8_0", "on"),
    ("q8_0", "f16", "off"),
    ("q4_0", "q4_0", "on"),
    ("q4_0", "f32", "on"),
)
"""(type of K, type of V, flash attention); libllama quantizes V with flash attention only."""
WIDTHS = {"f32": 256, "f16": 128, "bf16": 128, "q8_0": 68, "q4_0": 36}
"""Bytes of a row of 2 heads with 32 elements."""


class Fed(Context):
    """A context with the short ways of these tests."""

    def feed(self, seq: int, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Append tokens to a sequence; logits of the last."""
        row = self.add(seq, tokens, self.length(seq), logits=1)
        assert self.decode() is Decoded.OK
        return self.logits(row).copy()

    def fresh(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Logits after these tokens, computed in sequence 0 from nothing; leaves it empty."""
        self.cut(0, 0)
        self.feed(0, tokens[:-1])
        logits = self.feed(0, tokens[-1:])
        self.cut(0, 0)
        return logits

    def probed(self) -> StateFormat:
        found = StateFormat.probe(self)
        assert found is not None
        return found


def write_mrope(path: Path) -> Path:
    """Write a Qwen2-VL without its eyes: a cell of its cache has a 2D position and a token besides."""
    n_embd, n_head, n_head_kv, n_ff = 64, 4, 2, 128
    file = TinyFile(path, "qwen2vl", seed=0)
    words = spm_vocab()
    tiny._decoder_keys(file, words, n_embd=n_embd, n_layer=2, n_ff=n_ff, n_ctx_train=2048)
    tiny._attention_keys(file, n_head, n_head_kv)
    file.keys.add_rope_dimension_count(n_embd // n_head)
    file.keys.add_rope_dimension_sections([2, 3, 3, 0])
    file.vocabulary(words, n_embd)
    for layer in range(2):
        tiny._attention(file, layer, n_embd, n_embd // n_head * n_head_kv)
        tiny._gated_ffn(file, layer, n_embd, n_ff)
    return file.close()


def write_mla(path: Path) -> Path:
    """Write a DeepSeek 2 whose cache holds one compressed row for K and V."""
    n_embd, n_head, n_ff, q_rank, kv_rank, n_nope, n_rope, n_v = 64, 4, 128, 32, 32, 16, 8, 16
    file = TinyFile(path, "deepseek2", seed=0)
    words = spm_vocab()
    tiny._decoder_keys(file, words, n_embd=n_embd, n_layer=2, n_ff=n_ff, n_ctx_train=2048)
    tiny._attention_keys(file, n_head, 1)
    file.keys.add_rope_dimension_count(n_rope)
    file.keys.add_leading_dense_block_count(2)
    file.keys.add_expert_feed_forward_length(n_ff)
    file.keys.add_expert_shared_count(0)
    file.keys.add_q_lora_rank(q_rank)
    file.keys.add_kv_lora_rank(kv_rank)
    file.keys.add_key_length(kv_rank + n_rope)
    file.keys.add_value_length(kv_rank)
    file.keys.add_key_length_mla(n_nope + n_rope)
    file.keys.add_value_length_mla(n_v)
    file.vocabulary(words, n_embd)
    for layer in range(2):
        blk = f"blk.{layer}"
        file.ones(f"{blk}.attn_norm.weight", n_embd)
        file.ones(f"{blk}.attn_q_a_norm.weight", q_rank)
        file.ones(f"{blk}.attn_kv_a_norm.weight", kv_rank)
        file.matrix(f"{blk}.attn_q_a.weight", n_embd, q_rank)
        file.matrix(f"{blk}.attn_q_b.weight", q_rank, n_head * (n_nope + n_rope), gain=2)
        file.matrix(f"{blk}.attn_kv_a_mqa.weight", n_embd, kv_rank + n_rope)
        file.noise(f"{blk}.attn_k_b.weight", (n_head, kv_rank, n_nope), 0.3)
        file.noise(f"{blk}.attn_v_b.weight", (n_head, n_v, kv_rank), 0.3)
        file.matrix(f"{blk}.attn_output.weight", n_head * n_v, n_embd, residual=True)
        tiny._gated_ffn(file, layer, n_embd, n_ff)
    return file.close()


WRITERS: dict[str, Callable[[Path], Path]] = {
    # Heads of 32 elements, the block size of q8_0 and q4_0.
    "f32": partial(tiny.write_llama, n_embd=128),
    "f16": partial(tiny.write_llama, n_embd=128, n_layer=3, dtype="f16"),
    "mrope": write_mrope,
    "mla": write_mla,
}

Opener = Callable[..., Fed]


@pytest.fixture(scope="module")
def opened(tiny_models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opener]:
    """Opens contexts of small models by name; all are closed at the end of the module."""
    directory = tmp_path_factory.mktemp("states")
    models: dict[str, Model] = {}
    with ExitStack() as stack:

        def open_context(name: str, **params: object) -> Fed:
            if name not in models:
                path = WRITERS[name](directory / name) if name in WRITERS else tiny_models(name)
                models[name] = stack.enter_context(closing(Model.load(path, ModelParams())))
            values = {"n_ctx": 768, "parallel": 3, "kv_unified": True, "threads": 1, "warmup": False} | params
            return stack.enter_context(closing(Fed(models[name], ContextParams(**values))))  # type: ignore[arg-type]

        yield open_context


def chain(found: StateFormat, state: bytes, *ends: int) -> list[KvBlock]:
    """Blocks that end at the given positions, the first from 0."""
    return found.cut(state, list(zip((0, *ends[:-1]), ends, strict=True)))


def assert_close(got: NDArray[np.float32], wanted: NDArray[np.float32], *, flash: bool = False) -> None:
    """Logits are equal but for rounding; flash attention sums V in half precision, in the order of the cells."""
    assert float(wanted.std()) > 1
    np.testing.assert_allclose(got, wanted, rtol=0, atol=0.02 if flash else 1e-3)


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
@pytest.mark.parametrize(("type_k", "type_v", "flash_attn"), KINDS, ids=["-".join(kind) for kind in KINDS])
@pytest.mark.parametrize("model", ["f32", "f16"])
def test_a_prefix_goes_on_in_another_sequence(
    opened: Opener, model: str, type_k: str, type_v: str, flash_attn: str, unified: bool
) -> None:
    context = opened(model, cache_type_k=type_k, cache_type_v=type_v, flash_attn=flash_attn, kv_unified=unified)
    found = context.probed()
    n_layer, flash = 2 if model == "f32" else 3, flash_attn == "on" and type_v in ("f16", "f32")
    assert (found.n_layers, found.transposed, found.n_ext) == (n_layer, flash_attn == "off", 0)
    assert found.widths == (WIDTHS[type_k],) * n_layer + (WIDTHS[type_v],) * n_layer
    context.feed(1, TOKENS)
    blocks = chain(found, context.save(1), 16, 31, 32, 64, 100)
    assert context.restore(2, found.join([*blocks[:3], blocks[3].slice(8)]))
    assert context.length(2) == 40
    context.cut(1, 40)
    here, there = context.feed(1, TOKENS[40:41]), context.feed(2, TOKENS[40:41])
    assert_close(there, here, flash=flash and unified)
    assert_close(there, context.fresh(TOKENS[:41]), flash=flash)
    assert context.restore(2, found.join(blocks))
    assert found.cut(context.save(2), [(0, 100)]) == found.cut(found.join(blocks), [(0, 100)])


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
@pytest.mark.parametrize("parallel", [1, 2, 7])
def test_any_number_of_sequences(opened: Opener, parallel: int, unified: bool) -> None:
    context = opened("f32", parallel=parallel, kv_unified=unified, flash_attn="off")
    found = context.probed()
    assert found.n_streams == (1 if unified else parallel)
    assert [context.length(seq) for seq in range(parallel)] == [0] * parallel
    for seq in range(parallel):
        context.feed(seq, TOKENS[:50])
        blocks = chain(found, context.save(seq), 20, 50)
        context.cut(seq, 0)
        target = parallel - 1 - seq
        assert context.restore(target, found.join([blocks[0], blocks[1].slice(10)]))
        logits = context.feed(target, TOKENS[30:31])
        context.cut(target, 0)
        assert_close(logits, context.fresh(TOKENS[:31]))


def test_blocks_of_two_sequences_are_interchangeable(opened: Opener) -> None:
    context = opened("f32", flash_attn="off")
    found = context.probed()
    context.feed(0, TOKENS[:60])
    for start in (0, 7, 40):  # in other batches than sequence 0
        context.feed(1, TOKENS[start : {0: 7, 7: 40, 40: 60}[start]])
    one, other = (chain(found, context.save(seq), 20, 40, 60) for seq in (0, 1))
    context.clear()
    assert context.restore(2, found.join([one[0], other[1], one[2].slice(13)]))
    logits = context.feed(2, TOKENS[53:54])
    context.cut(2, 0)
    assert_close(logits, context.fresh(TOKENS[:54]))


def test_cells_in_any_order(opened: Opener) -> None:
    context = opened("f32", flash_attn="off")
    found = context.probed()
    context.feed(0, TOKENS[:20])
    context.feed(1, TOKENS[:20])
    context.cut(0, 10)
    context.feed(1, TOKENS[20:45])  # into the cells that sequence 0 left, and behind its own
    state = context.save(1)
    pos = np.frombuffer(state, np.int32, 45 * 3, 16).reshape(45, 3)[:, 0]
    assert pos[0] != 0
    assert sorted(pos) == list(range(45))
    blocks = chain(found, state, 15, 25, 40)  # of one run of cells, of two, and of one again
    assert context.restore(2, found.join(blocks))
    logits = context.feed(2, TOKENS[40:41])
    context.clear()
    assert_close(logits, context.fresh(TOKENS[:41]))


def test_a_shared_prefix_belongs_to_each_of_its_sequences(opened: Opener) -> None:
    context = opened("f32", flash_attn="off")
    found = context.probed()
    context.feed(0, TOKENS[:30])
    context.share(0, 1, 20)
    context.feed(1, TOKENS[50:60])
    first, other = (found.cut(context.save(seq), [(0, 20)]) for seq in (0, 1))
    assert first == other
    assert found.cut(context.save(0), [(20, 30)]) != found.cut(context.save(1), [(20, 30)])


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_blocks_fit_contexts_of_every_layout(opened: Opener, flash_attn: str) -> None:
    contexts = [
        opened("f32", parallel=4, kv_unified=True, flash_attn=flash_attn),
        opened("f32", parallel=3, kv_unified=False, flash_attn=flash_attn),
        opened("f32", parallel=1, kv_unified=False, flash_attn="off"),
    ]
    formats = [context.probed() for context in contexts]
    assert len({found.kind for found in formats}) == 1
    for source, found in zip(contexts, formats, strict=True):
        source.feed(0, TOKENS[:50])
        state = source.save(0)
        source.cut(0, 0)
        blocks = chain(found, state, 30, 50)
        for target, wanted in zip(contexts, formats, strict=True):
            if found.n_streams != wanted.n_streams:  # libllama itself refuses
                assert not target.restore(0, state)
            assert target.restore(0, wanted.join(blocks))
            logits = target.feed(0, TOKENS[50:51])
            assert_close(logits, target.fresh(TOKENS[:51]), flash=True)


def test_a_split_state_of_a_later_stream(opened: Opener) -> None:
    context = opened("f32", parallel=3, kv_unified=False)
    found = context.probed()
    context.feed(1, TOKENS[:9])
    state = context.save(1)
    assert struct.unpack_from("=iIII", state, 4)[:4] == (1, 3, 0, 9)
    assert found.join(chain(found, state, 4, 9))[12:16] == struct.pack("=I", 9)
    assert found.cut(context.save(2), []) == []
    with pytest.raises(NativeError, match="does not hold"):
        found.cut(context.save(2), [(0, 1)])


def test_positions_of_images_travel_along(opened: Opener) -> None:
    context = opened("mrope", flash_attn="off")
    found = context.probed()
    assert found.n_ext == 12
    context.feed(0, TOKENS[:60])
    blocks = chain(found, context.save(0), 25, 60)
    assert context.restore(1, found.join([blocks[0], blocks[1].slice(15)]))
    context.cut(0, 40)
    meta = [np.frombuffer(context.save(seq), np.int32, 40 * 6, 16).reshape(40, 6) for seq in (0, 1)]
    assert meta[1][:, 4].tolist() == list(TOKENS[:40])
    np.testing.assert_array_equal(meta[0][:, :5], meta[1][:, :5])
    logits = context.feed(1, TOKENS[40:41])
    context.cut(1, 0)
    assert_close(logits, context.fresh(TOKENS[:41]))


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_a_cache_without_v(opened: Opener, flash_attn: str) -> None:
    context = opened("mla", flash_attn=flash_attn)
    found = context.probed()
    assert found.widths == (80, 80)
    assert found.transposed is (flash_attn == "off")
    context.feed(0, TOKENS[:60])
    blocks = chain(found, context.save(0), 25, 60)
    assert context.restore(1, found.join([blocks[0], blocks[1].slice(15)]))
    logits = context.feed(1, TOKENS[40:41])
    context.cut(1, 0)
    assert_close(logits, context.fresh(TOKENS[:41]), flash=flash_attn == "on")


@pytest.mark.parametrize("unified", [True, False], ids=["unified", "split"])
@pytest.mark.parametrize("swa_full", [True, False])
@pytest.mark.parametrize("model", ["swa", "recurrent", "hybrid"])
def test_other_memories_are_not_cut(opened: Opener, model: str, swa_full: bool, unified: bool) -> None:
    context = opened(model, swa_full=swa_full, kv_unified=unified)
    assert StateFormat.probe(context) is None
    assert [context.length(seq) for seq in range(3)] == [0, 0, 0]


def test_the_probe_needs_an_empty_context(opened: Opener) -> None:
    context = opened("f32", n_batch=4)  # fewer than the probe computes
    assert StateFormat.probe(context) == context.probed()
    context.feed(1, TOKENS[:3])
    with pytest.raises(NativeError, match="empty"):
        StateFormat.probe(context)
    assert context.length(1) == 3


# From here on without libllama: states as its source describes them, written and read by a second hand.


@dataclass
class Memory:
    """A `Stateful` context whose state is written field by field. A cell's data follow from its token and position."""

    n_streams: int = 1
    n_ext: int = 0
    k: Sequence[tuple[int, int]] = ((1, 8), (1, 24))
    """(type, bytes of a row) of each layer."""
    v: Sequence[tuple[int, int, int]] = ((1, 8, 0), (0, 16, 0))
    """(type, bytes of a row, bytes of an element or 0 for rows)."""
    transposed: int | None = None
    n_ctx_seq: int = 64
    n_batch: int = 64
    n_seq_max: int = 3
    decoded: Decoded = Decoded.OK
    keeps: bool = True
    after_empty: Callable[[bytes], bytes] = bytes
    after_save: Callable[[bytes], bytes] = bytes
    after_restore: Callable[[list[list[bytes]]], list[list[bytes]]] = list
    vocab: Tokenizer = field(default_factory=lambda: FakeBackend().vocab)
    cells: dict[int, list[list[bytes]]] = field(default_factory=dict)
    """Sequence -> cells; a cell is (position, data of each plane)."""

    @property
    def widths(self) -> list[int]:
        return [self.n_ext, *(width for _type, width in self.k), *(width for _type, width, _element in self.v)]

    def add(self, seq: int, tokens: Sequence[int], pos: int, *, logits: int) -> int:
        for place, token in enumerate(tokens, pos):
            noise = np.random.default_rng((token, place))
            cell = [struct.pack("=i", place), *(noise.bytes(width) for width in self.widths)]
            if self.keeps:
                self.cells.setdefault(seq, []).append(cell)
        return logits

    def decode(self) -> Decoded:
        return self.decoded

    def cut(self, seq: int, n: int) -> None:
        self.cells[seq] = self.cells.get(seq, [])[:n]

    def length(self, seq: int) -> int:
        return len(self.cells.get(seq, []))

    def save(self, seq: int) -> bytes:
        stream = seq if self.n_streams > 1 else 0
        cells = self.cells.get(seq, [])
        out = struct.pack("=4siI", b"KVKV", seq, self.n_streams) + bytes(4 * stream) + struct.pack("=I", len(cells))
        if not cells:
            return self.after_empty(out + bytes(4 * (self.n_streams - 1 - stream)))
        for pos, ext, *_rows in cells:
            out += pos + struct.pack("=I", 1) + ext + struct.pack("=i", seq)
        transposed = any(element for _type, _width, element in self.v) if self.transposed is None else self.transposed
        out += struct.pack("=II", transposed, len(self.k))
        for layer, (number, width) in enumerate(self.k):
            out += struct.pack("=iQ", number, width) + b"".join(cell[2 + layer] for cell in cells)
        for layer, (number, width, element) in enumerate(self.v, 2 + len(self.k)):
            if not element:
                out += struct.pack("=iQ", number, width) + b"".join(cell[layer] for cell in cells)
                continue
            out += struct.pack("=iII", number, element, width // element)
            for at in range(0, width, element):
                out += b"".join(cell[layer][at : at + element] for cell in cells)
        return self.after_save(out + bytes(4 * (self.n_streams - 1 - stream)))

    def restore(self, seq: int, state: bytes) -> bool:
        """Accepts rows only (`v` without elements); the first stream holds the cells, as `join` writes them."""
        n = struct.unpack_from("=I", state, 12)[0]
        at, cells = 16, []
        for _ in range(n):
            cells.append([state[at : at + 4], state[at + 8 : at + 8 + self.n_ext]])
            at += 12 + self.n_ext
        at += 8
        for width in self.widths[1:]:
            at += 12
            for cell in cells:
                cell.append(state[at : at + width])
                at += width
        self.cells[seq] = self.after_restore(cells)
        return True


MEMORIES = {
    "plain": partial(Memory),
    "split": partial(Memory, n_streams=3),
    "ext": partial(Memory, n_ext=12),
    "ext 8": partial(Memory, n_ext=8, n_streams=3),
    "without V": partial(Memory, v=()),
    "without V, transposed": partial(Memory, v=(), transposed=True),
    "a layer without heads": partial(Memory, k=((1, 8), (1, 0)), v=((1, 8, 0), (1, 0, 0))),
    "odd rows": partial(Memory, k=((8, 34), (2, 18)), v=((8, 34, 0), (8, 17, 0))),
}


@pytest.mark.parametrize("name", MEMORIES)
def test_the_probe_learns_what_libllama_could_write(name: str) -> None:
    memory = MEMORIES[name]()
    found = StateFormat.probe(memory)
    assert found is not None
    assert (found.n_streams, found.n_ext, found.n_layers) == (memory.n_streams, memory.n_ext, 2)
    assert sum(found.widths) == sum(memory.widths)
    assert not any(memory.cells.values())
    memory.add(2, range(20), 0, logits=0)
    blocks = chain(found, memory.save(2), 6, 20)
    for block in blocks:
        cells = memory.cells[2][block.start : block.end]
        assert block.data == b"".join(cell[1 + plane] for plane in range(len(memory.widths)) for cell in cells)


def swapped(cells: list[list[bytes]]) -> list[list[bytes]]:
    """The last two cells with each other's K of the first layer."""
    cells[-1][2], cells[-2][2] = cells[-2][2], cells[-1][2]
    return cells


def relayered(state: bytes) -> bytes:
    """With 2**32 - 1 layers."""
    at = 16 + 11 * 12 + 4
    return state[:at] + b"\xff" * 4 + state[at + 4 :]


SIGHT, KV, CELLS = "no plain attention cache", "bytes are not the K and V", "its cells are not the positions"
REFUSED = {
    "no memory": (partial(Memory, after_empty=lambda state: state[:8]), SIGHT),
    "two caches": (partial(Memory, after_empty=lambda state: state + bytes(8)), SIGHT),
    "no pools": (partial(Memory, after_empty=lambda state: state[:8] + bytes(4)), SIGHT),
    "bytes behind": (partial(Memory, after_save=lambda state: state + b"more"), KV),
    "bytes missing": (partial(Memory, after_save=lambda state: state[:-1]), "it ends after"),
    "a second cache": (partial(Memory, after_save=lambda state: state + state[8:]), KV),
    "a longer header": (
        partial(Memory, after_save=lambda state: state[:12] + b"!!!!" + state[12:]),
        "does not count the 11 cells",
    ),
    "a longer cell": (partial(Memory, after_save=lambda state: state[:20] + b"!!" + state[20:]), CELLS),
    "no end": (partial(Memory, after_save=lambda state: state[:60]), CELLS),
    "no layers": (partial(Memory, k=(), v=()), KV),
    "many layers": (partial(Memory, after_save=relayered), "it ends after"),
    "V of one layer": (partial(Memory, v=((1, 8, 0),)), "it ends after"),
    "quantized columns": (partial(Memory, v=((2, 36, 18), (2, 36, 18))), "an element of V has 18 bytes"),
    "other columns": (partial(Memory, v=(), transposed=2), "its layers have other types or widths"),
    "data lost": (partial(Memory, after_restore=lambda cells: cells[:-1]), "does not take it back"),
    "data mixed up": (partial(Memory, after_restore=swapped), "makes something else of it"),
    "nothing computed": (partial(Memory, keeps=False), "the model keeps none"),
    "no room": (partial(Memory, decoded=Decoded.NO_SLOT), "no room"),
    "no sequence": (partial(Memory, n_ctx_seq=3), "too short"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_probe_refuses_what_it_cannot_prove(name: str, caplog: pytest.LogCaptureFixture) -> None:
    make, reason = REFUSED[name]
    memory = make()
    with caplog.at_level("INFO", "minka.native"):
        assert StateFormat.probe(memory) is None
    assert reason in caplog.text
    assert not any(memory.cells.values())


def test_a_refused_restore_turns_slicing_off(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    monkeypatch.setattr(memory, "restore", lambda _seq, _state: False)
    assert StateFormat.probe(memory) is None


@pytest.fixture(scope="module")
def saved(opened: Opener) -> dict[str, tuple[StateFormat, bytes]]:
    """A format and a state of 60 cells for V in rows and V in columns."""
    found = {}
    for flash_attn in ("on", "off"):
        context = opened("f16", flash_attn=flash_attn, parallel=2, kv_unified=False)
        context_format = context.probed()
        context.feed(1, TOKENS[:60])
        found[flash_attn] = (context_format, context.save(1))
    return found


@settings(deadline=None, max_examples=60)
@given(data=st.data())
@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_random_cuts(saved: dict[str, tuple[StateFormat, bytes]], flash_attn: str, data: st.DataObject) -> None:
    found, state = saved[flash_attn]
    ends = sorted(data.draw(st.sets(st.integers(1, 60), min_size=1)))
    blocks = chain(found, state, *ends)
    n = data.draw(st.integers(1, blocks[-1].n_tokens))
    blocks[-1] = blocks[-1].slice(n)
    whole = found.cut(state, [(0, blocks[-1].end)])
    assert found.join(blocks) == found.join(whole)
    assert found.cut(found.join(blocks), [(block.start, block.end) for block in blocks]) == blocks
    first = data.draw(st.integers(0, len(blocks) - 1))
    part = found.join(blocks[first:])
    start = blocks[first].start
    assert found.cut(part, [(start, blocks[-1].end)]) == found.cut(state, [(start, blocks[-1].end)])
    stored = [KvBlock.from_bytes(block.to_bytes()) for block in blocks]
    assert stored == blocks


@settings(deadline=None, max_examples=60)
@given(order=st.permutations(range(12)), ends=st.sets(st.integers(1, 12), min_size=1), columns=st.booleans())
def test_cells_are_put_in_order(order: list[int], ends: set[int], columns: bool) -> None:
    memory = Memory(n_ext=8)
    found = StateFormat.probe(memory)
    assert found is not None
    if columns:
        memory.v = ((1, 8, 2), (0, 16, 4))
        planes = [
            replace(plane, head=head, element=element)
            for plane, head, element in zip(
                found.planes[2:], (struct.pack("=iII", 1, 2, 4), struct.pack("=iII", 0, 4, 4)), (2, 4), strict=True
            )
        ]
        found = replace(found, transposed=True, planes=(*found.planes[:2], *planes))
    memory.add(0, range(12), 0, logits=0)
    blocks = chain(found, memory.save(0), *sorted(ends))
    memory.cells[0] = [memory.cells[0][i] for i in order]
    assert chain(found, memory.save(0), *sorted(ends)) == blocks


def test_holes_and_doubles_are_refused() -> None:
    memory = Memory()
    found = StateFormat.probe(memory)
    assert found is not None
    memory.add(0, range(12), 0, logits=0)
    del memory.cells[0][5]
    assert [block.n_tokens for block in found.cut(memory.save(0), [(0, 5), (6, 12)])] == [5, 6]
    memory.cells[0].append(memory.cells[0][-1])
    for start, end in ((0, 6), (4, 7), (5, 6), (10, 12), (11, 12), (11, 13), (0, 2**40), (3, 3), (4, 2), (-1, 2)):
        with pytest.raises(NativeError):
            found.cut(memory.save(0), [(start, end)])


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_every_changed_header_byte_is_seen(opened: Opener, flash_attn: str) -> None:
    context = opened("f32", flash_attn=flash_attn, parallel=3, kv_unified=False)
    found = context.probed()
    n = 5
    context.feed(1, TOKENS[:n])
    state = context.save(1)
    spots = list(range(20 + n * 12 + 8))
    at = len(spots)
    for plane in found.planes:
        assert state[at : at + 12] == plane.head
        spots += range(at, at + 12)
        at += 12 + n * plane.width
    spots += range(at, at + 4)
    assert at + 4 == len(state)
    found.cut(state, [(0, n)])
    for spot in spots:
        for bit in (1, 0x80):
            broken = bytearray(state)
            broken[spot] ^= bit
            with pytest.raises(NativeError):
                found.cut(broken, [(0, n)])


@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_every_wrong_length_is_seen(saved: dict[str, tuple[StateFormat, bytes]], flash_attn: str) -> None:
    found, state = saved[flash_attn]
    lengths = {*range(20 + 60 * 12 + 30), *range(len(state) - 30, len(state)), *range(0, len(state), 997)}
    for length in lengths:
        with pytest.raises(NativeError):
            found.cut(state[:length], [(0, 1)])
        with pytest.raises(NativeError):
            found.cut(memoryview(state)[:length], [])
    for more in (b"\0", bytes(4), state):
        with pytest.raises(NativeError):
            found.cut(state + more, [(0, 1)])


def test_a_count_beyond_the_state_is_seen(saved: dict[str, tuple[StateFormat, bytes]]) -> None:
    found, state = saved["on"]
    for count in (0, 1, 59, 61, 2**31, 2**32 - 1):
        with pytest.raises(NativeError):
            found.cut(state[:16] + struct.pack("=I", count) + state[20:], [(0, 1)])


def test_only_consecutive_blocks_of_one_kind_are_joined(opened: Opener) -> None:
    context, other = opened("f32"), opened("f32", cache_type_k="q8_0", cache_type_v="q8_0", flash_attn="on")
    found, other_format = context.probed(), other.probed()
    context.feed(0, TOKENS[:30])
    first, second, third = chain(found, context.save(0), 10, 20, 30)
    for blocks in ([], [first, third], [second, first], [first, first]):
        with pytest.raises(NativeError, match="follow"):
            found.join(blocks)
    with pytest.raises(NativeError, match="kind of cache"):
        other_format.join([first])
    with pytest.raises(NativeError, match="more than libllama can count"):
        found.join([replace(first, start=2**31 - 5)])
    assert found.join([second, third])[16:20] == struct.pack("=i", 10)


def test_slices_of_a_block(saved: dict[str, tuple[StateFormat, bytes]]) -> None:
    found, state = saved["off"]
    (block,) = found.cut(state, [(10, 40)])
    assert (block.start, block.n_tokens, block.end, block.n_bytes) == (10, 30, 40, 30 * sum(found.widths))
    for n in (1, 2, 29, 30):
        assert [block.slice(n)] == found.cut(state, [(10, 10 + n)])
    for n in (-1, 0, 31):
        with pytest.raises(NativeError, match="no first"):
            block.slice(n)


def test_blocks_are_stored_and_read(saved: dict[str, tuple[StateFormat, bytes]]) -> None:
    found, state = saved["on"]
    (block,) = found.cut(state, [(3, 9)])
    raw = block.to_bytes()
    assert KvBlock.from_bytes(raw) == KvBlock.from_bytes(bytearray(raw)) == block
    assert pickle.loads(pickle.dumps(block)) == block
    for length in (*range(80), len(raw) - 1):
        with pytest.raises(NativeError):
            KvBlock.from_bytes(raw[:length])
    for spot in (0, 3, 24, 28, 31, 32, 33):  # magic, n_tokens, number of planes, a width
        broken = bytearray(raw)
        broken[spot] ^= 0x40
        with pytest.raises(NativeError):
            KvBlock.from_bytes(broken)
    with pytest.raises(NativeError):
        KvBlock.from_bytes(raw + b"\0")


@pytest.mark.parametrize("into", [("on", True), ("on", False), ("off", True), ("off", False)])
@pytest.mark.parametrize("out_of", [("on", True), ("on", False), ("off", True), ("off", False)])
def test_a_state_of_another_layout_is_adopted(opened: Opener, out_of: tuple[str, bool], into: tuple[str, bool]) -> None:
    source = opened("f16", flash_attn=out_of[0], kv_unified=out_of[1])
    source.feed(1, TOKENS[:-1])
    state = source.save(1)
    target = opened("f16", flash_attn=into[0], kv_unified=into[1])
    assert target.sliceable
    expected = target.fresh(TOKENS)
    assert target.restore(2, target.adopt(state))
    assert target.length(2) == len(TOKENS) - 1
    assert np.abs(target.feed(2, TOKENS[-1:]) - expected).max() < 0.02


@pytest.mark.parametrize("unified", [True, False])
def test_a_slot_file_goes_to_a_context_with_flash_attention(opened: Opener, unified: bool) -> None:
    source = opened("f16", flash_attn="off", kv_unified=unified)
    assert source.sliceable
    source.feed(1, TOKENS[:-1])
    target = opened("f16", flash_attn="on", kv_unified=unified)
    expected = target.fresh(TOKENS)
    assert not target.restore(2, source.save(1))
    assert target.restore(2, source.portable(source.save(1)))
    assert np.abs(target.feed(2, TOKENS[-1:]) - expected).max() < 0.02


def test_a_state_that_is_none_is_left_alone(opened: Opener) -> None:
    context = opened("f16")
    learned = StateFormat.probe(context)
    assert learned is not None
    for raw in (b"", b"nonsense" * 10, struct.pack("=4siI", b"qsgg", 0, 2**31)):
        assert adopt(learned, raw) is raw
