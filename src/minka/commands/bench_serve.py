"""The load test of `minka bench serve`: flags, progress, table, files. Not a command of its own."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from minka.commands.meter import Meter
from minka.errors import MinkaError, UnavailableError, UsageError

if TYPE_CHECKING:
    from minka.tools.bench_prompts import Dataset
    from minka.tools.bench_serve import LoadTest, Plan
    from minka.tools.bench_spread import Level

INTERRUPTED = 130
DATASETS = ("random", "shared-prefix", "multi-turn", "file")


def configure_serve(parser: ArgumentParser) -> None:
    """Declare the arguments."""
    parser.description = (
        "Measure servers with OpenAI's API under load: throughput, time to the first token, time between tokens."
    )
    parser.add_argument("serve_url", metavar="URL", help="the server, as in http://127.0.0.1:8080")
    text = "a server to compare with, which gets the same prompts in turn; may be repeated"
    parser.add_argument("--vs", action="append", default=[], metavar="URL", help=text)
    load = parser.add_argument_group("Load")
    text = "numbers of clients at a time, a list or range (default: 1,2,4,8)"
    load.add_argument("--clients", default="1,2,4,8", metavar="N,...", help=text)
    text = "requests for each number of clients (default: four a client, at least eight)"
    load.add_argument("-n", "--requests", type=int, default=0, metavar="N", help=text)
    load.add_argument("--dataset", choices=DATASETS, metavar="|".join(DATASETS), help="what is asked (default: random)")
    text = "prompts a line, or .jsonl with turns, messages, prompt, question or text; implies --dataset file"
    load.add_argument("--file", type=Path, metavar="FILE", help=text)
    for name, default, text in (
        ("input-tokens", 128, "tokens of a prompt, or of a turn"),
        ("output-tokens", 64, "tokens of an answer"),
        ("prefix-tokens", 512, "tokens that all prompts share, for shared-prefix"),
        ("turns", 4, "turns of a conversation, for multi-turn"),
        ("seed", 1, "seed of the prompts"),
    ):
        text = f"{text} (default: {default})"
        load.add_argument(f"--{name}", type=int, default=default, metavar="N", help=text)
    _add_requests(parser)
    output = parser.add_argument_group("Output")
    output.add_argument("--json", action="store_true", help="print JSON in place of the table")
    output.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the JSON to a file as well")
    output.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw a picture: .svg, or .png with cairosvg")


def _add_requests(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("Requests")
    group.add_argument("--api", choices=("chat", "completions"), default="chat", help="OpenAI's API (default: chat)")
    group.add_argument("--model", default="", metavar="NAME", help="the model to ask for (default: the first listed)")
    text = "access key (env: OPENAI_API_KEY)"
    group.add_argument("--api-key", metavar="KEY", help=text)
    group.add_argument("--temperature", type=float, default=0.0, metavar="T", help="temperature (default: 0)")
    text = "let answers end by themselves, for servers that do not know the field ignore_eos"
    group.add_argument("--no-ignore-eos", dest="ignore_eos", action="store_false", help=text)
    group.add_argument("--extra-body", default="{}", metavar="JSON", help="further fields of every request")
    text = "seconds after which a request counts as failed (default: 600)"
    group.add_argument("--timeout", type=float, default=600.0, metavar="S", help=text)


def run_serve(args: Namespace) -> int:
    """Measure, print, write."""
    from minka.tools.bench_plot import check_plot
    from minka.tools.bench_serve import LoadTest

    if args.plot:
        check_plot(args.plot)
    plan, urls = _plan(args), [args.serve_url, *args.vs]
    if len(set(urls)) < len(urls):
        raise UsageError("the servers to compare are the same")
    n_requests = len(urls) * sum(plan.requests(n) for n in plan.levels)
    with Meter("requests", n_requests) as meter:
        test = LoadTest(urls, plan, on_request=lambda _: meter.advance(), on_level=_warn)
        complete = _run(test)
    levels = [*test.results, *([test.partial] if test.partial else [])]
    if not levels:
        return INTERRUPTED
    _report(args, plan, urls, levels)
    if not complete:
        print("interrupted: the last level has fewer requests", file=sys.stderr)
        return INTERRUPTED
    if not any(level.done for level in levels):
        raise UnavailableError(f"no request was answered: {levels[0].errors[0]}")
    return 0


def _run(test: LoadTest) -> bool:
    """Run the test; False if a Ctrl-C cut it short."""
    import asyncio

    try:
        import uvloop
    except ImportError:
        factory = asyncio.new_event_loop
    else:
        factory = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(test.run())
    except KeyboardInterrupt:
        return False
    return True


def _warn(level: Level) -> None:
    """Say why requests failed, once for each reason."""
    for reason in dict.fromkeys(level.errors):
        n = level.errors.count(reason)
        print(f"{level.url}, {level.n_clients} clients: {n} failed: {reason}", file=sys.stderr, flush=True)


def _plan(args: Namespace) -> Plan:
    from minka.tools.bench_matrix import parse_range
    from minka.tools.bench_serve import Plan

    try:
        extra = json.loads(args.extra_body)
    except ValueError as error:
        raise UsageError(f"--extra-body must be a JSON object: {error}") from None
    if not isinstance(extra, dict):
        raise UsageError("--extra-body must be a JSON object")
    body = {"temperature": args.temperature} | ({"ignore_eos": True} if args.ignore_eos else {})
    return Plan(
        dataset=_dataset(args),
        levels=tuple(dict.fromkeys(parse_range(args.clients, low=1))),
        n_requests=args.requests,
        max_tokens=args.output_tokens,
        model=args.model,
        api=args.api,
        api_key=args.api_key or os.environ.get("OPENAI_API_KEY", ""),
        extra=body | extra,
        timeout=args.timeout,
        seed=args.seed,
    )


def _dataset(args: Namespace) -> Dataset:
    from minka.tools.bench_prompts import MultiTurn, Random, SharedPrefix, read_dataset

    if min(args.input_tokens, args.prefix_tokens, args.turns) < 1:
        raise UsageError("--input-tokens, --prefix-tokens and --turns must be at least 1")
    name = args.dataset or ("file" if args.file else "random")
    if (name == "file") != (args.file is not None):
        raise UsageError("--dataset file and --file belong together")
    match name:
        case "shared-prefix":
            return SharedPrefix(args.prefix_tokens, args.input_tokens)
        case "multi-turn":
            return MultiTurn(args.turns, args.input_tokens)
        case "file":
            return read_dataset(args.file)
        case _:
            return Random(args.input_tokens)


def _report(args: Namespace, plan: Plan, urls: Sequence[str], levels: Sequence[Level]) -> None:
    from minka.ggufs.terminal import draw
    from minka.tools.bench_plot import plot_svg, write_plot
    from minka.tools.bench_serve_report import draw_table, to_json

    text = json.dumps(to_json(levels, plan), indent=1)
    if args.json:
        print(text)
    else:
        draw(lambda console: draw_table(console, levels, urls, plan))
    if args.output:
        try:
            args.output.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise MinkaError(f"cannot write {args.output}: {error.strerror}") from None
        print(f"wrote {args.output}", file=sys.stderr)
    if args.plot:
        write_plot(args.plot, plot_svg(levels, urls, f"{plan.dataset.name}, {plan.max_tokens} out"))
        print(f"wrote {args.plot}", file=sys.stderr)
