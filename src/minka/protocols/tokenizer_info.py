"""`GET /tokenizer_info`, vLLM's: what a client needs to tokenize with `POST /tokenize` as if it had the tokenizer.

The names are those of Hugging Face's tokenizer_config.json. lm-eval's remote tokenizer reads it.
"""

from __future__ import annotations

from minka.protocols.schema import COUNT, FLAG, NULL, TEXT, TOKEN, either, record
from minka.protocols.served import Served


def tokenizer_object(served: Served) -> dict[str, object]:
    """The tokenizer's special tokens, its size and its template. A token that there is not is null."""
    tokenizer = served.tokenizer
    body: dict[str, object] = {
        "tokenizer_class": "GGUF",
        "add_bos_token": tokenizer.add_bos,
        "add_eos_token": tokenizer.add_eos,
        "model_max_length": served.n_ctx,
        "vocab_size": tokenizer.n_tokens,
        "chat_template": served.template.source,
    }
    for name, token in (("bos_token", tokenizer.bos), ("eos_token", tokenizer.eos)):
        body |= {name: tokenizer.text(token) if token >= 0 else None, f"{name}_id": token if token >= 0 else None}
    return body


TOKENIZER = record(
    tokenizer_class=TEXT,
    add_bos_token=FLAG,
    add_eos_token=FLAG,
    model_max_length=COUNT,
    vocab_size=COUNT,
    chat_template=TEXT,
    bos_token=either(TEXT, NULL),
    bos_token_id=either(TOKEN, NULL),
    eos_token=either(TEXT, NULL),
    eos_token_id=either(TOKEN, NULL),
)
