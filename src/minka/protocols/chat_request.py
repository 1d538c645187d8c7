"""A chat request that another API's request was read as, ready for the engine: its turn, options and jobs."""

from __future__ import annotations

from dataclasses import dataclass

from minka.chat.prompt import prompt_tokens
from minka.chat.turn import Turn
from minka.protocols.body import JsonObject, Options, decode_options, jobs
from minka.protocols.chat_body import chat_turn, held_to
from minka.protocols.openai_chat import OWN_FIELDS
from minka.protocols.openai_completions import with_logprobs
from minka.protocols.served import Served
from minka.types import Job


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One answer: how it is made, and the job that makes it."""

    turn: Turn
    options: Options
    job: Job


def chat_request(body: JsonObject, served: Served, id: str, *, n_top: int | None = None) -> ChatRequest:
    """Read a chat body that asks for one answer. Raises RequestError that names the chat body's field.

    `n_top`: log probabilities are told, with so many alternatives.
    """
    options = with_logprobs(decode_options(body, served, supported=OWN_FIELDS), n_top)
    turn = chat_turn(body, served)
    (job,) = held_to(turn, jobs([prompt_tokens(turn.prompt, served.tokenizer)], options, id), served)
    return ChatRequest(turn, options, job)
