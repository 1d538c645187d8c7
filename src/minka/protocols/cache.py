"""The prefix cache on the wire: pinning a prefix, and what the tiers hold. `POST /cache/pin`, `GET /cache`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from minka.errors import RequestError
from minka.params import Adapters, GenerationParams, SamplingParams, parse_fields, refuse_unsupported
from minka.protocols.body import JsonObject, decode_lora, decode_prompts, new_id
from minka.protocols.lora import SCALES
from minka.protocols.openai_chat import CHAT_FIELDS, chat_tokens
from minka.protocols.route import Prefill
from minka.protocols.schema import COUNT, TEXT, TOKEN, Field, either, listed, record, word
from minka.protocols.served import Served
from minka.types import CacheView, Event, Finished, Job, Priority, TierView

_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_GREEDY = SamplingParams(temperature=0.0)


def decode_pin(body: JsonObject, served: Served) -> PinExchange:
    """A prefix as a prompt or as messages, and its name."""
    refuse_unsupported(body)
    name = body.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise RequestError('"name" must be 1 to 64 letters, digits, or characters of "._-"', param="name")
    salt = parse_fields(GenerationParams, {"cache_salt": body.get("cache_salt")}, served.generation).cache_salt
    return PinExchange(name, _tokens(body, served), salt, decode_lora(body.get("lora"), served.adapters))


def _tokens(body: JsonObject, served: Served) -> tuple[int, ...]:
    given = [field for field in ("prompt", "messages") if body.get(field) is not None]
    if len(given) != 1:
        raise RequestError(
            f'a pin needs either "prompt" or "messages", but has {" and ".join(given) or "neither"}', param="prompt"
        )
    if given == ["messages"]:
        # The header of an answer comes after the messages that follow, so it is not part of what they share.
        header = body.get("add_generation_prompt")
        return tuple(chat_tokens({**body, "add_generation_prompt": header is not None and header}, served))
    prompts = decode_prompts(body["prompt"], served.tokenizer)
    if len(prompts) != 1:
        raise RequestError(f'"prompt" must be one prompt, but has {len(prompts)}', param="prompt")
    return tuple(prompts[0])


class PinExchange:
    """Implements `exchange.Exchange`: one job that computes the prefix and generates nothing."""

    stream = False
    ping_interval = 0

    def __init__(self, name: str, prompt: tuple[int, ...], salt: str, lora: Adapters) -> None:
        job = Job(
            id=new_id("pin-"),
            prompt=prompt,
            sampling=_GREEDY,
            n_predict=0,
            priority=Priority.LOW,
            cache_salt=salt,
            lora=lora,
            pin=name,
        )
        self.jobs = (job,)
        self._n_cached = 0

    def add(self, event: Event) -> None:
        """See Exchange."""
        if isinstance(event, Finished):
            self._n_cached = event.timings.cache_n

    def whole(self) -> object:
        """See Exchange."""
        (job,) = self.jobs
        return {"name": job.pin, "n_tokens": len(job.prompt), "n_cached": self._n_cached}

    def frames(self, event: Event) -> Iterable[bytes]:
        """See Exchange: it never streams."""
        self.add(event)
        return ()

    def last_frames(self) -> Iterable[bytes]:
        """See Exchange."""
        return ()


def cache_object(view: CacheView) -> dict[str, object]:
    """What every tier holds and was good for, and what is pinned."""
    return {
        "kind": "states" if view.whole else "blocks",
        "tiers": {tier.name: _tier_object(tier) for tier in view.tiers},
        "pins": [{"name": pin.name, "n_tokens": pin.n_tokens, "bytes": pin.n_bytes} for pin in view.pins],
    }


def _tier_object(tier: TierView) -> dict[str, object]:
    served = {"hits": tier.hits, "tokens_served": tier.served}
    if tier.n_bytes is None:
        return {"entries": tier.entries, "tokens": tier.tokens, "limit_tokens": tier.limit, **served}
    return {
        "entries": tier.entries,
        "tokens": tier.tokens,
        "bytes": tier.n_bytes,
        "limit_bytes": tier.limit,
        **served,
    }


_SERVED = {"hits": COUNT, "tokens_served": COUNT}
_BYTES = record(entries=COUNT, tokens=COUNT, bytes=COUNT, limit_bytes=COUNT, **_SERVED)
CACHE = {
    **record(
        kind=word("blocks", "states"),
        tiers=record(
            device=record(entries=COUNT, tokens=COUNT, limit_tokens=COUNT, **_SERVED),
            ram=_BYTES,
            disk=_BYTES,
        ),
        pins=listed(record(name=TEXT, n_tokens=COUNT, bytes=COUNT)),
    ),
    "description": "there is a disk tier only with --cache-disk; limit_bytes is null for no limit",
}

_PROMPT = Field(
    "prompt",
    either(TEXT, listed(either(TOKEN, TEXT)), record(prompt_string=TEXT)),
    "a text, token ids, a mix of both, or an object with prompt_string",
)
_CHAT = tuple(replace(field, required=False) for field in CHAT_FIELDS)

ROUTES = (
    Prefill(
        ("/cache/pin",),
        decode_pin,
        "Compute a prefix and keep it in memory under a name",
        fields=(
            Field("name", {**TEXT, "pattern": f"^{_NAME.pattern}$"}, "an older pin of this name goes", required=True),
            _PROMPT,
            *_CHAT,
            Field("cache_salt", TEXT, "the prefix serves requests with this salt only"),
            Field("lora", SCALES, "it serves requests with these adapters only; without the field the server's"),
        ),
        example={"name": "assistant", "messages": [{"role": "system", "content": "You answer in one sentence."}]},
        result=record(name=TEXT, n_tokens=COUNT, n_cached=COUNT),
    ),
)
