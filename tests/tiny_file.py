"""The builder under the writers of tiny models: a GGUF file whose tensors are seeded noise of a chosen size.

It keeps one channel of the residual stream free of noise, through which the vocabulary's prior reaches the logits. It
knows no architecture: names, shapes and keys come from the writer.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
from gguf import GGUFWriter, LlamaFileType
from numpy.typing import NDArray

from tests.tiny_vocab import Vocab

DType = Literal["f32", "f16"]

PRIOR_CHANNEL = 2.0
"""Channel 0 of the residual stream: a constant that no layer writes to. It carries the prior to the logits."""

LOGIT_GAIN = 3.0
"""Standard deviation of logits around the prior: about 2.5 nats of entropy over 512 tokens."""

REPULSION = 8.0
"""Logits a token takes from itself as its own successor; without it greedy text hangs on one token."""


class TinyFile:
    """A GGUF file in the making: seeded random tensors under libllama's names, written by `close`."""

    def __init__(self, path: Path, arch: str, *, seed: int, dtype: DType = "f32") -> None:
        self.path = path
        self.keys = GGUFWriter(path, arch)
        self.keys.add_name(f"tiny {arch}")
        self.keys.add_file_type(LlamaFileType.MOSTLY_F16 if dtype == "f16" else LlamaFileType.ALL_F32)
        self.rng = np.random.default_rng(seed)
        self.dtype = np.float16 if dtype == "f16" else np.float32

    def vector(self, name: str, values: NDArray[np.float32]) -> None:
        """Add `values` as they are; norms, biases and state-space parameters stay F32."""
        self.keys.add_tensor(name, values.astype(np.float32))

    def ones(self, name: str, n: int) -> None:
        self.vector(name, np.ones(n, np.float32))

    def noise(self, name: str, shape: tuple[int, ...], scale: float) -> None:
        """Add an F32 tensor of the numpy `shape` (reversed `ne`), normal with standard deviation `scale`."""
        self.vector(name, self.normal(shape, scale))

    def normal(self, shape: tuple[int, ...], scale: float) -> NDArray[np.float32]:
        return self.rng.standard_normal(shape, np.float32) * np.float32(scale)

    def matrix(self, name: str, n_in: int, n_out: int, *, gain: float = 1.0, residual: bool = False) -> None:
        """Add a weight that maps unit inputs to outputs of standard deviation `gain`; `residual` spares channel 0."""
        values = self.normal((n_out, n_in), gain / n_in**0.5)
        if residual:
            values[0] = 0.0
        self.keys.add_tensor(name, values.astype(self.dtype))

    def vocabulary(
        self, vocab: Vocab, n_embd: int, *, norm: str = "output_norm.weight", embedding_scale: float = 1.0
    ) -> None:
        """Add both ends of the model: token embedding, last norm and output layer.

        Logits have a standard deviation of about LOGIT_GAIN around each token's prior. `embedding_scale` is the
        inverse of the factor that the architecture puts on embeddings.
        """
        embedding = self.normal((len(vocab), n_embd), 1.0)
        embedding[:, 0] = PRIOR_CHANNEL
        output = self.normal((len(vocab), n_embd), LOGIT_GAIN / n_embd**0.5) - embedding * (REPULSION / n_embd)
        output[:, 0] = [token.prior for token in vocab.tokens]
        self.keys.add_tensor("token_embd.weight", (embedding * embedding_scale).astype(self.dtype))
        self.ones(norm, n_embd)
        self.keys.add_tensor("output.weight", output.astype(self.dtype))

    def close(self) -> Path:
        self.keys.write_header_to_file()
        self.keys.write_kv_data_to_file()
        self.keys.write_tensors_to_file()
        self.keys.close()
        return self.path
