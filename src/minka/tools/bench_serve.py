"""Load tests of servers with OpenAI's API: how fast they are for one client, two, four and so on.

Each level has so many clients, and each of them sends its next request when its last one is answered. Servers that are
compared take turns, with the same prompts. Knows no command line.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from minka.errors import UnavailableError, UsageError
from minka.tools.bench_prompts import Conversation, Dataset, Random, prose
from minka.tools.bench_requests import Api, Message, Sample, Target, base_path
from minka.tools.bench_spread import Level
from minka.tools.load_client import Client, LoadError

DEFAULT_RATIO = 1.3
"""Tokens of a word if a server does not count tokens."""
CALIBRATE = (10, 60)
"""Words of the first requests, which warm a server up and tell how many tokens a word has. Small contexts hold them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do to each server.

    `levels` are numbers of clients, `n_requests` the requests of a level: 0 for four a client, but at least eight.
    `extra` are further fields of every request. `timeout` is one request's, in seconds.
    """

    dataset: Dataset = field(default_factory=lambda: Random(128))
    levels: tuple[int, ...] = (1, 2, 4, 8)
    n_requests: int = 0
    max_tokens: int = 64
    model: str = ""
    api: Api = "chat"
    api_key: str = field(default="", repr=False)
    extra: Mapping[str, object] = field(default_factory=dict)
    timeout: float = 600.0
    seed: int = 1

    def check(self) -> None:
        """Raises UsageError for numbers that make no test."""
        if not self.levels or min(self.levels) < 1 or self.n_requests < 0 or self.max_tokens < 1 or self.timeout <= 0:
            raise UsageError("clients, requests, tokens and the time limit of a load test must be greater than 0")

    def requests(self, n_clients: int) -> int:
        """Requests of a level."""
        return self.n_requests or max(4 * n_clients, 8)


class LoadTest:
    """A load test of one or more servers.

    `results` are the levels that are complete, `partial` the one that was under way when `run` was cancelled.
    """

    def __init__(
        self,
        urls: Sequence[str],
        plan: Plan,
        *,
        on_request: Callable[[Sample], None] | None = None,
        on_level: Callable[[Level], None] | None = None,
    ) -> None:
        plan.check()
        self._plan = plan
        self._on_request, self._on_level = on_request or (lambda _: None), on_level or (lambda _: None)
        headers = {"Authorization": f"Bearer {plan.api_key}"} if plan.api_key else {}
        self._targets = [
            Target(url, Client.of_url(url, headers), base_path(url), plan.model, plan.api, plan.extra) for url in urls
        ]
        self.results: list[Level] = []
        self.partial: Level | None = None

    async def run(self) -> list[Level]:
        """All levels of all servers. Raises UnavailableError for a server that does not answer as it should."""
        try:
            ratios = [await self._get_ready(number) for number in range(len(self._targets))]
            turns = list(zip(self._targets, ratios, strict=True))
            for n_clients in self._plan.levels:
                for target, ratio in turns:
                    await self._level(target, ratio, n_clients)
                turns.reverse()  # the machine may get slower or faster meanwhile
        finally:
            for target in self._targets:
                target.client.close()
        return self.results

    async def _get_ready(self, number: int) -> float:
        """Find the model of a server, warm it up and return the tokens that it makes of a word."""
        target = self._targets[number]
        if not target.model:
            self._targets[number] = target = replace(target, model=await _first_model(target))
        counts = []
        for n_words in CALIBRATE:
            sample = await self._ask(target, [{"role": "user", "content": prose(random.Random(0), n_words)}], 4)
            if sample.error:
                raise UnavailableError(f"{target.url} cannot be measured: {sample.error}")
            counts.append(sample.n_prompt)
        ratio = (counts[1] - counts[0]) / (CALIBRATE[1] - CALIBRATE[0])
        return ratio if ratio > 0 else DEFAULT_RATIO

    async def _level(self, target: Target, ratio: float, n_clients: int) -> None:
        conversations = self._plan.dataset.conversations(ratio, f"{self._plan.seed} {n_clients}")
        work = _Work(self._plan.requests(n_clients), conversations)
        samples: list[Sample] = []
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(n_clients):
                    group.create_task(self._client(target, work, samples))
        except asyncio.CancelledError:
            self.partial = Level(target.url, n_clients, tuple(samples)) if samples else None
            raise
        level = Level(target.url, n_clients, tuple(samples))
        self.results.append(level)
        self._on_level(level)

    async def _client(self, target: Target, work: _Work, samples: list[Sample]) -> None:
        """Hold conversations until there is nothing left to do."""
        while work.left:
            conversation = next(work.conversations)
            messages = [_message("system", conversation.system)] if conversation.system else []
            for turn in conversation.turns:
                if not work.take():
                    return
                messages.append(_message("user", turn))
                sample = await self._ask(target, messages, self._plan.max_tokens)
                samples.append(sample)
                self._on_request(sample)
                if sample.error:
                    break
                messages.append(_message("assistant", sample.text))

    async def _ask(self, target: Target, messages: list[Message], max_tokens: int) -> Sample:
        began = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(self._plan.timeout):
                return await target.ask(messages, max_tokens)
        except TimeoutError:
            return Sample(began, self._plan.timeout, error=f"no whole answer within {self._plan.timeout:g} seconds")


@dataclass(slots=True)
class _Work:
    """What the clients of a level share: the requests that are left, and what to ask next."""

    left: int
    conversations: Iterator[Conversation]

    def take(self) -> bool:
        """Take one of the requests that are left; False if there is none."""
        if not self.left:
            return False
        self.left -= 1
        return True


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


async def _first_model(target: Target) -> str:
    """The first model that a server lists; empty if it does not."""
    try:
        reply = await target.client.request("GET", f"{target.base}/models")
        models = json.loads(reply.body)["data"]
        return str(models[0]["id"])
    except OSError as error:
        raise UnavailableError(f"{target.url} does not answer: {error.strerror or error}") from None
    except (LoadError, ValueError, KeyError, IndexError, TypeError):
        return ""


def load_test(
    urls: str | Sequence[str],
    plan: Plan | None = None,
    *,
    on_request: Callable[[Sample], None] | None = None,
    on_level: Callable[[Level], None] | None = None,
) -> list[Level]:
    """Test one server or compare several; the levels, in the order in which they were measured.

    Raises UnavailableError for a server that does not answer, UsageError for a plan or URL that cannot be.
    """
    servers = [urls] if isinstance(urls, str) else list(urls)
    return asyncio.run(LoadTest(servers, plan or Plan(), on_request=on_request, on_level=on_level).run())
