"""Writers for tiny, seeded, random-weight GGUF models that libllama loads and runs in milliseconds.

Every `write_X(path, *, seed, ...)` returns `path`; the same arguments give the same bytes. The text is nonsense, but
lively: pieces of English, no short loops under greedy decoding, an end token only where `eog_prior` asks for one. Keys,
tensor names and shapes follow libllama's loader. Nothing here knows Minka.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from gguf import GGUFReader, GGUFValueType, PoolingType

from tests.tiny_file import DType, TinyFile
from tests.tiny_vocab import NEVER, Vocab, bpe_vocab, spm_vocab, wordpiece_vocab, write_vocab

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def write_llama(
    path: Path,
    *,
    seed: int = 0,
    n_embd: int = 64,
    n_layer: int = 2,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 128,
    n_ctx_train: int = 2048,
    n_vocab: int = 512,
    chat_template: str | None = CHATML,
    vocab: Literal["bytes", "bpe"] = "bytes",
    fim: bool = False,
    space_prefix: bool = False,
    eog_prior: float = NEVER,
    dtype: DType = "f32",
) -> Path:
    """Write a Llama: SentencePiece with byte fallback ("bytes", adds bos) or byte-level BPE ("bpe", adds none).

    `fim` adds fill-in-the-middle markers, `space_prefix` Llama 2's leading space. `eog_prior` is the end tokens' logit
    against a word piece's: at 3 most greedy texts end within 50 tokens, at the default none ends by itself.
    """
    if vocab == "bpe":
        words = bpe_vocab(n_vocab, fim=fim, eog_prior=eog_prior)
    else:
        words = spm_vocab(n_vocab, fim=fim, space_prefix=space_prefix, eog_prior=eog_prior)
    file = TinyFile(path, "llama", seed=seed, dtype=dtype)
    _decoder_keys(file, words, n_embd=n_embd, n_layer=n_layer, n_ff=n_ff, n_ctx_train=n_ctx_train)
    _attention_keys(file, n_head, n_head_kv)
    file.keys.add_rope_dimension_count(n_embd // n_head)
    if chat_template is not None:
        file.keys.add_chat_template(chat_template)
    file.vocabulary(words, n_embd)
    for layer in range(n_layer):
        _attention(file, layer, n_embd, n_embd // n_head * n_head_kv)
        _gated_ffn(file, layer, n_embd, n_ff)
    return file.close()


def write_swa(path: Path, *, seed: int = 0, window: int = 32, n_ctx_train: int = 2048, n_layer: int = 2) -> Path:
    """Write a Gemma 3 whose even layers attend over the last `window` positions only and whose odd ones over all."""
    n_embd, n_head, n_head_kv, n_ff = 64, 4, 2, 128
    words = spm_vocab()
    file = TinyFile(path, "gemma3", seed=seed)
    _decoder_keys(file, words, n_embd=n_embd, n_layer=n_layer, n_ff=n_ff, n_ctx_train=n_ctx_train)
    _attention_keys(file, n_head, n_head_kv)
    file.keys.add_key_length(n_embd // n_head)
    file.keys.add_value_length(n_embd // n_head)
    file.keys.add_sliding_window(window)
    file.keys.add_sliding_window_pattern(2)
    file.keys.add_chat_template(CHATML)
    file.vocabulary(words, n_embd, embedding_scale=n_embd**-0.5)  # Gemma multiplies embeddings by sqrt(n_embd)
    spared = np.ones(n_embd, np.float32)
    spared[0] = 0.0  # Gemma norms what a block adds; channel 0 must stay as it is
    for layer in range(n_layer):
        _attention(file, layer, n_embd, n_embd // n_head * n_head_kv)
        _gated_ffn(file, layer, n_embd, n_ff)
        for norm in ("attn_q_norm", "attn_k_norm"):
            file.ones(f"blk.{layer}.{norm}.weight", n_embd // n_head)
        for norm in ("post_attention_norm", "post_ffw_norm"):
            file.vector(f"blk.{layer}.{norm}.weight", spared)
    return file.close()


def write_recurrent(path: Path, *, seed: int = 0, n_ctx_train: int = 2048, n_layer: int = 2) -> Path:
    """Write a Mamba: no attention, a state of fixed size for each sequence."""
    n_embd, d_conv, d_state, dt_rank = 64, 4, 16, 4
    d_inner = 2 * n_embd  # the one expansion libllama accepts
    words = spm_vocab()
    file = TinyFile(path, "mamba", seed=seed)
    _decoder_keys(file, words, n_embd=n_embd, n_layer=n_layer, n_ff=0, n_ctx_train=n_ctx_train)
    file.keys.add_head_count(0)
    file.keys.add_ssm_conv_kernel(d_conv)
    file.keys.add_ssm_inner_size(d_inner)
    file.keys.add_ssm_state_size(d_state)
    file.keys.add_ssm_time_step_rank(dt_rank)
    file.keys.add_chat_template(CHATML)
    file.vocabulary(words, n_embd)
    for layer in range(n_layer):
        blk = f"blk.{layer}"
        file.ones(f"{blk}.attn_norm.weight", n_embd)
        file.matrix(f"{blk}.ssm_in.weight", n_embd, 2 * d_inner)
        file.noise(f"{blk}.ssm_conv1d.weight", (d_inner, d_conv), 0.7)
        file.noise(f"{blk}.ssm_conv1d.bias", (d_inner,), 0.1)
        file.matrix(f"{blk}.ssm_x.weight", d_inner, dt_rank + 2 * d_state)
        file.matrix(f"{blk}.ssm_dt.weight", dt_rank, d_inner, gain=0.5)
        file.noise(f"{blk}.ssm_dt.bias", (d_inner,), 1.0)
        # Decay rates up to 1, a sixteenth of Mamba's usual start: a state that remembers some dozens of tokens.
        rates = np.linspace(1 / d_state, 1, d_state, dtype=np.float32)
        file.vector(f"{blk}.ssm_a", -np.tile(rates, (d_inner, 1)))
        file.ones(f"{blk}.ssm_d", d_inner)
        file.matrix(f"{blk}.ssm_out.weight", d_inner, n_embd, gain=0.3, residual=True)
    return file.close()


def write_hybrid(path: Path, *, seed: int = 0, n_ctx_train: int = 2048) -> Path:
    """Write an LFM2 of two layers: a short convolution (recurrent state), then attention (KV cache)."""
    n_embd, n_head, n_head_kv, n_ff, l_cache = 64, 4, 2, 128, 3
    words = spm_vocab()
    file = TinyFile(path, "lfm2", seed=seed)
    _decoder_keys(file, words, n_embd=n_embd, n_layer=2, n_ff=n_ff, n_ctx_train=n_ctx_train)
    file.keys.add_head_count(n_head)
    file.keys.add_head_count_kv([0, n_head_kv])  # zero marks a recurrent layer
    file.keys.add_shortconv_l_cache(l_cache)
    file.keys.add_chat_template(CHATML)
    file.vocabulary(words, n_embd, norm="token_embd_norm.weight")  # LFM2's name for its last norm
    file.ones("blk.0.attn_norm.weight", n_embd)
    file.noise("blk.0.shortconv.conv.weight", (n_embd, l_cache), 0.7)
    file.matrix("blk.0.shortconv.in_proj.weight", n_embd, 3 * n_embd)
    file.matrix("blk.0.shortconv.out_proj.weight", n_embd, n_embd, residual=True)
    _attention(file, 1, n_embd, n_embd // n_head * n_head_kv)
    for norm in ("attn_q_norm", "attn_k_norm"):
        file.ones(f"blk.1.{norm}.weight", n_embd // n_head)
    for layer in range(2):
        _gated_ffn(file, layer, n_embd, n_ff)
    return file.close()


def write_bert(path: Path, *, seed: int = 0, n_embd: int = 64, n_layer: int = 2, n_ctx_train: int = 512) -> Path:
    """Write a BERT that pools by mean: texts that share words get close embeddings."""
    return _bert(path, PoolingType.MEAN, seed=seed, n_embd=n_embd, n_layer=n_layer, n_ctx_train=n_ctx_train).close()


def write_reranker(path: Path, *, seed: int = 0, n_embd: int = 64, n_layer: int = 2, n_ctx_train: int = 512) -> Path:
    """Write a BERT with rank pooling: a dense layer and one output over [CLS] give one score for each text."""
    file = _bert(path, PoolingType.RANK, seed=seed, n_embd=n_embd, n_layer=n_layer, n_ctx_train=n_ctx_train)
    file.matrix("cls.weight", n_embd, n_embd)
    file.noise("cls.bias", (n_embd,), 0.1)
    file.matrix("cls.output.weight", n_embd, 1, gain=3.0)
    file.noise("cls.output.bias", (1,), 0.1)
    return file.close()


def write_lora(
    path: Path,
    *,
    base: Path,
    seed: int = 0,
    rank: int = 4,
    alpha: float = 8.0,
    gain: float = 1.0,
    invocation: Sequence[int] = (),
) -> Path:
    """Write a LoRA adapter for the Llama at `base`, on the query, value and down projections of every layer.

    At scale 1 the change of a weight is about `gain` times the weight's own size. With `invocation` tokens it is an
    activated one.
    """
    file = TinyFile(path, "llama", seed=seed)
    file.keys.add_type("adapter")
    file.keys.add_string("adapter.type", "lora")
    file.keys.add_float32("adapter.lora.alpha", alpha)
    file.keys.add_string("adapter.lora.task_name", "tiny task")
    if invocation:
        key = "adapter.alora.invocation_tokens"
        file.keys.add_key_value(key, list(invocation), GGUFValueType.ARRAY, GGUFValueType.UINT32)
    for tensor in GGUFReader(base).tensors:
        if not tensor.name.endswith(("attn_q.weight", "attn_v.weight", "ffn_down.weight")):
            continue
        n_in, n_out = (int(n) for n in tensor.shape)
        file.matrix(f"{tensor.name}.lora_a", n_in, rank)
        file.matrix(f"{tensor.name}.lora_b", rank, n_out, gain=gain * rank / alpha, residual=True)
    return file.close()


def write_truncated(path: Path, *, seed: int = 0, keep: float = 0.5) -> Path:
    """Write the first `keep` (0..1) of a Llama's bytes: at 0.5 the header is whole and the weights end early."""
    whole = write_llama(path, seed=seed).read_bytes()
    path.write_bytes(whole[: int(len(whole) * keep)])
    return path


def write_not_gguf(path: Path, *, seed: int = 0) -> Path:
    """Write a web page under a model's name, as a failed download leaves it; `seed` varies its length."""
    path.write_text("<!doctype html>\n<title>404 Not Found</title>\n" + "<p>No such file.</p>\n" * (8 + seed % 8))
    return path


def write_future_version(path: Path, *, seed: int = 0, version: int = 99) -> Path:
    """Write a Llama whose header claims GGUF `version`, which no reader knows."""
    whole = bytearray(write_llama(path, seed=seed).read_bytes())
    struct.pack_into("<I", whole, 4, version)  # magic, then the version
    path.write_bytes(whole)
    return path


def write_nan(path: Path, *, seed: int = 0) -> Path:
    """Write a Llama whose output layer is NaN: it loads and decodes, and every logit is NaN."""
    write_llama(path, seed=seed)
    reader = GGUFReader(path, "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "output.weight").data[:] = np.nan
    reader.data.flush()
    return path


def _decoder_keys(file: TinyFile, vocab: Vocab, *, n_embd: int, n_layer: int, n_ff: int, n_ctx_train: int) -> None:
    file.keys.add_context_length(n_ctx_train)
    file.keys.add_embedding_length(n_embd)
    file.keys.add_block_count(n_layer)
    file.keys.add_feed_forward_length(n_ff)
    file.keys.add_layer_norm_rms_eps(1e-5)
    file.keys.add_vocab_size(len(vocab))
    write_vocab(file.keys, vocab)


def _attention_keys(file: TinyFile, n_head: int, n_head_kv: int) -> None:
    file.keys.add_head_count(n_head)
    file.keys.add_head_count_kv(n_head_kv)


def _attention(file: TinyFile, layer: int, n_embd: int, n_embd_kv: int) -> None:
    blk = f"blk.{layer}"
    file.ones(f"{blk}.attn_norm.weight", n_embd)
    # Query and key gains over 1 make attention pick positions instead of averaging them. Value and output stay at 1:
    # flash attention sums in half precision, and its error (~0.01 logits here) must not turn greedy choices.
    file.matrix(f"{blk}.attn_q.weight", n_embd, n_embd, gain=1.5)
    file.matrix(f"{blk}.attn_k.weight", n_embd, n_embd_kv, gain=1.5)
    file.matrix(f"{blk}.attn_v.weight", n_embd, n_embd_kv)
    file.matrix(f"{blk}.attn_output.weight", n_embd, n_embd, residual=True)


def _gated_ffn(file: TinyFile, layer: int, n_embd: int, n_ff: int) -> None:
    blk = f"blk.{layer}"
    file.ones(f"{blk}.ffn_norm.weight", n_embd)
    file.matrix(f"{blk}.ffn_gate.weight", n_embd, n_ff, gain=1.5)
    file.matrix(f"{blk}.ffn_up.weight", n_embd, n_ff)
    file.matrix(f"{blk}.ffn_down.weight", n_ff, n_embd, gain=1.5, residual=True)


def _bert(path: Path, pooling: PoolingType, *, seed: int, n_embd: int, n_layer: int, n_ctx_train: int) -> TinyFile:
    n_head, n_ff = 4, 2 * n_embd
    words = wordpiece_vocab()
    file = TinyFile(path, "bert", seed=seed)
    file.keys.add_context_length(n_ctx_train)
    file.keys.add_embedding_length(n_embd)
    file.keys.add_block_count(n_layer)
    file.keys.add_feed_forward_length(n_ff)
    file.keys.add_head_count(n_head)
    file.keys.add_layer_norm_eps(1e-12)
    file.keys.add_causal_attention(value=False)
    file.keys.add_pooling_type(pooling)
    file.keys.add_token_type_count(2)
    write_vocab(file.keys, words)
    file.matrix("token_embd.weight", n_embd, len(words), gain=n_embd**0.5)
    file.noise("token_types.weight", (2, n_embd), 0.1)
    file.noise("position_embd.weight", (n_ctx_train, n_embd), 0.1)
    _layer_norm(file, "token_embd_norm", n_embd)
    for layer in range(n_layer):
        blk = f"blk.{layer}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            file.matrix(f"{blk}.{part}.weight", n_embd, n_embd, gain=0.7)
            file.noise(f"{blk}.{part}.bias", (n_embd,), 0.1)
        _layer_norm(file, f"{blk}.attn_output_norm", n_embd)
        file.matrix(f"{blk}.ffn_up.weight", n_embd, n_ff)
        file.noise(f"{blk}.ffn_up.bias", (n_ff,), 0.1)
        file.matrix(f"{blk}.ffn_down.weight", n_ff, n_embd, gain=0.7)
        file.noise(f"{blk}.ffn_down.bias", (n_embd,), 0.1)
        _layer_norm(file, f"{blk}.layer_output_norm", n_embd)
    return file


def _layer_norm(file: TinyFile, name: str, n_embd: int) -> None:
    file.ones(f"{name}.weight", n_embd)
    file.noise(f"{name}.bias", (n_embd,), 0.1)
