"""What llama-quantize makes of the tests' models: the first half of the SHA-256 of its output, by its arguments.

Made with llama-quantize of llama.cpp 0.5.0-dev, run in a folder with the files of `write_sources`, then `sha256sum
out.gguf`. The name of the importance matrix is stored in the output, so it has to be run there. Rounding differs on
processors other than x86-64.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from minka.tools.imatrix_file import Entry, Imatrix, write_gguf
from tests import tiny


def write_sources(folder: Path) -> None:
    """Write Llamas of one and of two layers, whose rows hold a whole block of every type, and an importance matrix."""
    tiny.write_llama(folder / "one.gguf", n_embd=256, n_ff=256, n_layer=1, n_head=4, n_head_kv=1)
    tiny.write_llama(folder / "two.gguf", n_embd=256, n_ff=256, n_layer=2, n_head=4, n_head_kv=2)
    rng = np.random.default_rng(1)
    names = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    entries = {
        f"blk.{layer}.{name}.weight": Entry(rng.random(256, np.float32) * np.float32(640), np.array([640]))
        for layer in range(2)
        for name in names
    }
    write_gguf(folder / "imatrix.gguf", Imatrix(entries, ("words.txt",), 5, 128))


BY_TYPE = {
    "Q1_0": "0d8c3794909ab041a422f2d172b128cc",
    "Q2_0": "9a2d77d5f9cb26f8aa0808c61eb33093",
    "Q4_0": "d6a428431a50fffe1797348da1cb37f7",
    "Q4_1": "5d518ffaf4c6b156fe210193a6a14a9a",
    "MXFP4_MOE": "6285ac3846a2c5d5873d04843a641516",
    "Q5_0": "7f47ab0d6a08a5f72e56e7d256c80d99",
    "Q5_1": "5200f44d9d03eb538b76ca1f692dea86",
    "IQ2_XXS": "f3aafec7a7faebe499f2234d764ea366",
    "IQ2_XS": "f7badddb7ceb34fd544d2830e1011c2d",
    "IQ2_S": "c00fdc9166f793c907a71f6b895edfc2",
    "IQ2_M": "65941587ab3e915710cf49f88e8ba826",
    "IQ1_S": "f4f02e00e02cafda4abb434911e00caa",
    "IQ1_M": "c6db4f4f60a20e3cc1ffea563a21039a",
    "TQ1_0": "550905bce014f00c1c9018b26fc37fd5",
    "TQ2_0": "7350a9cdcc025aaf7d544f17e7a87957",
    "Q2_K": "09f82d7caf0a4e5c95b1b88adbefe3a5",
    "Q2_K_S": "93112e11ea4077ee9a021a54e6faf08b",
    "IQ3_XXS": "b713d184d06d26409de42c6735f7c2c5",
    "IQ3_S": "2f02d271e9102348847f9ad6081fbbba",
    "IQ3_M": "a1c5974239ed3f7e714acecc3a80380c",
    "Q3_K": "11972b875fad8837354ab646d8dc1827",
    "IQ3_XS": "f8a6a2dd434158882ded291420c2b1b5",
    "Q3_K_S": "6aa94b6103019dbb6b28bc83954d064f",
    "Q3_K_M": "11972b875fad8837354ab646d8dc1827",
    "Q3_K_L": "1e8fcf860d273c8afc69d720ad92021d",
    "IQ4_NL": "916341eda59a280234bf375a49991cde",
    "IQ4_XS": "0835e28ee4a9f4479607c55463fe4290",
    "Q4_K": "9f4542e9fef3288d3122115cff52b646",
    "Q4_K_S": "73ff706c402e56cc08db046959ee681e",
    "Q4_K_M": "9f4542e9fef3288d3122115cff52b646",
    "Q5_K": "6a62dd602cd678aff80a5d1fc13830e7",
    "Q5_K_S": "be8609c7efdf67ac32ce075a6172c634",
    "Q5_K_M": "6a62dd602cd678aff80a5d1fc13830e7",
    "Q6_K": "470651d045072544dbcf976e19d9bc55",
    "Q8_0": "ac232aace0052874998f02170760d3cd",
    "F16": "7e2ee2680577383116d7b466a63a5843",
    "BF16": "a021513f1fb462a578d8c65df8a051e3",
    "F32": "b013a5e7f16281306ac7e4918efbf5cb",
    "COPY": "4c169980b3ce1f33740bc0672552164c",
}
"""llama-quantize --imatrix imatrix.gguf --token-embedding-type f16 --output-tensor-type f16 one.gguf out.gguf TYPE"""

BY_OPTIONS = {
    "Q4_K_M": "9837aea6efc5ad751c958b8f29801aa3",
    "--pure Q4_K_M": "22b908606d6a1d78b75f294e8e77049d",
    "--leave-output-tensor Q4_K_M": "9323fcf06b20ecd0ca39464970e47f15",
    "--output-tensor-type q8_0 --token-embedding-type Q3_K Q4_K_M": "36581747e58865e00009a13fe5d45e61",
    "--tensor-type attn_v=q6_k --tensor-type \\.(\\d*[13579])\\.attn_k=Q5_K Q4_K_M": "9384fc9924eb3f9a680c40eda8e3e59b",
    (
        "--imatrix ./imatrix.gguf --include-weights attn_v --include-weights ffn_down Q4_0"
    ): "feb7372373425f03e736b8ba4d137513",
    "--imatrix imatrix.gguf --exclude-weights attn_v Q4_0": "a76e79bbda003959041646bcefc73178",
    "--imatrix imatrix.gguf --include-weights nothing Q4_0": "a81620c0cc2675acf791bb1180d3f964",
    "--imatrix imatrix.gguf --prune-layers 0 Q3_K_S": "f989152d41afa014b1ca49974458641b",
    (
        "--override-kv 'general.name=str:new name' --override-kv x.y=int:-5 "
        "--override-kv a.f=float:1.5 --override-kv b.b=bool:true COPY"
    ): "d9d672384b9ad5f8de65274a84f62509",
    "--max-buffer-size 1 Q4_K_M": "9837aea6efc5ad751c958b8f29801aa3",
}
"""llama-quantize ARGUMENTS two.gguf out.gguf TYPE"""
