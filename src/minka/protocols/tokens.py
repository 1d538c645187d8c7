"""Text and tokens without any inference: /tokenize, /detokenize, /apply-template, and counting."""

from __future__ import annotations

from minka.errors import RequestError
from minka.params import json_type
from minka.protocols.body import JsonObject, check_token, decode_mixed
from minka.protocols.openai_chat import CHAT_EXAMPLE, CHAT_FIELDS, chat_text, chat_tokens
from minka.protocols.route import Computed
from minka.protocols.schema import COUNT, FLAG, NULL, TEXT, TOKEN, Field, either, listed, record, word
from minka.protocols.served import Served


def tokenize(body: JsonObject, served: Served) -> object:
    """`content` (a string, or a mix of strings and ids) as ids, or as `{id, piece}` with `with_pieces`.

    With `prompt` or `messages` in its place it is vLLM's route of the same path, with its names and defaults.
    """
    if (answer := _tokenize_vllm(body, served)) is not None:
        return answer
    add_special, parse_special = _flag(body, "add_special", False), _flag(body, "parse_special", True)  # noqa: FBT003
    content = body.get("content")
    match content:
        case None:
            tokens = []
        case str():
            tokens = served.tokenizer.tokenize(content, add_special=add_special, parse_special=parse_special)
        case list():
            tokens = decode_mixed(
                content, served.tokenizer, add_special=add_special, parse_special=parse_special, path="content"
            )
        case _:
            raise RequestError(
                f'"content" must be a string or a list of strings and token ids, but is {json_type(content)}',
                param="content",
            )
    if not _flag(body, "with_pieces", False):  # noqa: FBT003
        return {"tokens": tokens}
    return {"tokens": [{"id": token, "piece": _piece(served.tokenizer.piece(token, special=True))} for token in tokens]}


def _piece(piece: bytes) -> str | list[int]:
    """A token's text, or its bytes where they are no whole characters."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return list(piece)


def _tokenize_vllm(body: JsonObject, served: Served) -> object:
    """The ids of a text, or of a conversation as the chat template writes it; None if the body has neither."""
    prompt, messages = body.get("prompt"), body.get("messages")
    spelled = _flag(body, "return_token_strs", False)  # noqa: FBT003
    add_special = _flag(body, "add_special_tokens", True)  # noqa: FBT003
    if not isinstance(prompt, str | None):
        raise RequestError(f'"prompt" must be a string, but is {json_type(prompt)}', param="prompt")
    if not isinstance(messages, list | None):
        raise RequestError(f'"messages" must be a list, but is {json_type(messages)}', param="messages")
    if body.get("content") is not None or (prompt is None and messages is None):
        return None
    if prompt is None:
        tokens = chat_tokens(body, served)
    else:
        tokens = served.tokenizer.tokenize(prompt, add_special=add_special, parse_special=True)
    return {
        "count": len(tokens),
        "max_model_len": served.n_ctx,
        "tokens": tokens,
        "token_strs": [served.tokenizer.text(token) for token in tokens] if spelled else None,
    }


def detokenize(body: JsonObject, served: Served) -> object:
    """`tokens` as text, under llama-server's name and under vLLM's."""
    tokens = body.get("tokens")
    if tokens is None:
        tokens = []
    if not isinstance(tokens, list):
        raise RequestError(f'"tokens" must be a list of token ids, but is {json_type(tokens)}', param="tokens")
    ids = [check_token(token, served.tokenizer, f"tokens[{index}]") for index, token in enumerate(tokens)]
    text = served.tokenizer.detokenize(ids, special=True).decode("utf-8", "replace")
    return {"content": text, "prompt": text}


def apply_template(body: JsonObject, served: Served) -> object:
    """The prompt text of a chat request."""
    return {"prompt": chat_text(body, served)}


def count_input_tokens(body: JsonObject, served: Served) -> object:
    """The number of tokens of a chat request's prompt."""
    return {"input_tokens": len(chat_tokens(body, served)), "object": "response.input_tokens"}


def _flag(body: JsonObject, name: str, default: bool) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise RequestError(f'"{name}" must be true or false, but is {json_type(value)}', param=name)
    return value


_TOKENIZE = (
    Field("content", either(TEXT, listed(either(TEXT, TOKEN))), "a text, or a mix of texts and token ids"),
    Field("add_special", FLAG, "add the tokens that the model wants around a text; false if not given"),
    Field("parse_special", FLAG, "spellings of special tokens become those tokens; true if not given"),
    Field("with_pieces", FLAG, "tell each token's text as well; false if not given"),
    Field("prompt", TEXT, "vLLM's name of a text; the answer is vLLM's then"),
    Field("messages", listed({"type": "object"}), "a conversation, in place of a text; the answer is vLLM's then"),
    Field("add_special_tokens", FLAG, "add_special for prompt; true if not given"),
    Field("return_token_strs", FLAG, "tell the spelling of each token of prompt or messages; false if not given"),
)
_PIECE = record(id=TOKEN, piece=either(TEXT, listed(COUNT)))

ROUTES = (
    Computed(
        ("/tokenize",),
        tokenize,
        "Token ids of a text",
        fields=_TOKENIZE,
        example={"content": "Once upon a time"},
        result=record(
            tokens=either(listed(TOKEN), listed(_PIECE)),
            count=COUNT,
            max_model_len=COUNT,
            token_strs=either(listed(TEXT), NULL),
        ),
    ),
    Computed(
        ("/detokenize",),
        detokenize,
        "Text of token ids",
        fields=(Field("tokens", listed(TOKEN), "token ids"),),
        example={"tokens": [1, 2, 3]},
        result=record(content=TEXT, prompt=TEXT),
    ),
    Computed(
        ("/apply-template",),
        apply_template,
        "The prompt text of a conversation",
        fields=CHAT_FIELDS,
        example=CHAT_EXAMPLE,
        result=record(prompt=TEXT),
    ),
    Computed(
        ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"),
        count_input_tokens,
        "The number of prompt tokens of a conversation",
        fields=CHAT_FIELDS,
        example=CHAT_EXAMPLE,
        result=record(input_tokens=COUNT, object=word("response.input_tokens")),
    ),
)
