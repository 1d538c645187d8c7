"""Work on a file of API requests, many at a time, and write their answers to a file.

The input has a request a line, in the form of OpenAI's batch jobs:
{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {...}}. The output has a line for each, in
the same order. A run that was interrupted is taken up again by the same command, and does nothing twice.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from minka.commands.arguments import add_parameters, resolve
from minka.commands.chat import start_log
from minka.commands.command import Command
from minka.commands.llama_flags import add_llama_server
from minka.commands.settings import GROUPS, settings
from minka.errors import UsageError
from minka.params import EmbeddingParams, LogParams
from minka.terminal.options import QuietParams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from minka.batches.journal import Journal
    from minka.batches.lines import Line
    from minka.commands.meter import Meter
    from minka.runtime import Runtime


def configure(parser: ArgumentParser) -> None:
    """The two files, then the flags of the model."""
    parser.add_argument("input", metavar="INPUT", help="a file with a request a line (JSONL)")
    parser.add_argument("-o", "--output", metavar="FILE", help="where the answers go; it is written at the end")
    add_parameters(parser, *GROUPS, EmbeddingParams, QuietParams, LogParams, omit=("verbosity",))
    add_llama_server(parser)


def run(args: Namespace) -> int:
    """Check the whole input, load the model, work on what is not done yet, write the output."""
    import asyncio
    from contextlib import closing

    from minka.batches.execute import endpoints
    from minka.batches.journal import Journal
    from minka.commands.meter import Meter
    from minka.ggufs.atomic import replacing
    from minka.runtime import load

    start_log(args)
    if not args.output:
        raise UsageError("name the file for the answers: -o FILE")
    source, output = Path(args.input), Path(args.output)
    n_lines = _checked(source, tuple(endpoints()))
    if output.exists() and output.samefile(source):
        raise UsageError(f"{output} is the input; give the answers another name")
    if output.is_dir() or not output.parent.is_dir():
        raise UsageError(f"{output} cannot be written: give the name of a file in a folder that exists")
    wanted = replace(settings(args), embedding=resolve(args, EmbeddingParams, os.environ))
    with closing(load(wanted)) as runtime:
        name, partial = runtime.served.model.name, output.with_name(f"{output.name}.partial")
        if not partial.exists() and _is_done(source, output, name):
            print(f"all {n_lines} requests were done before; to do them again, remove {output}", file=sys.stderr)
            return 0
        with closing(Journal(partial, source, name)) as journal:
            with Meter("requests", n_lines) as meter:
                asyncio.run(_work(source, journal, runtime, meter))
            with replacing(output, force=True, inputs=(source,)) as out:
                out.writelines(journal.results())
            n_failed = journal.n_failed
            journal.remove()
    if n_failed:
        print(f"{n_failed} of {n_lines} requests failed; their lines in {output} say why", file=sys.stderr)
    return 1 if n_failed else 0


def _checked(source: Path, urls: tuple[str, ...]) -> int:
    """The number of requests. Raises UsageError for a file that has none, or one that is wrong."""
    from minka.batches.lines import check_file

    try:
        n_lines, problems = check_file(source, urls)
    except OSError as error:
        raise UsageError(f"cannot read {source}: {error.strerror}") from None
    if problems:
        first = problems[0]
        where = f"{source} line {first.line}" if first.line else str(source)
        more = f" ({len(problems) - 1} more problems follow)" if len(problems) > 1 else ""
        raise UsageError(f"{where}: {first.message}{more}")
    return n_lines


def _is_done(source: Path, output: Path, model: str) -> bool:
    """Whether the output has a good answer of this model to each request, as a run leaves it that came to its end."""
    from minka.batches.lines import read_lines

    if not output.exists() or output.stat().st_mtime < source.stat().st_mtime:
        return False
    try:
        answers = [json.loads(raw) for _, raw in read_lines(output)]
        ids = [answer["custom_id"] for answer in answers if answer["response"]["status_code"] == 200]
        models = {answer["response"]["body"].get("model", model) for answer in answers}
    except (ValueError, LookupError, TypeError, AttributeError):  # another file of that name, which is replaced
        return False
    asked = (json.loads(raw)["custom_id"] for _, raw in read_lines(source))
    return models == {model} and len(ids) == len(answers) and ids == list(asked)


async def _work(source: Path, journal: Journal, runtime: Runtime, meter: Meter) -> None:
    import asyncio
    from contextlib import aclosing

    from minka.batches.execute import execute

    for _ in journal.done:
        meter.advance()
    # More than there are slots: one that gets free finds a request that waits.
    n_parallel = 2 * runtime.served.n_slots
    async with aclosing(execute(_lines(source, journal.done), runtime, n_parallel)) as steps:
        async for results in steps:
            await asyncio.to_thread(journal.save, results)
            for _ in results:
                meter.advance()


def _lines(source: Path, done: frozenset[int]) -> Iterator[Line]:
    from minka.batches.execute import endpoints
    from minka.batches.lines import parse_line, read_lines

    for number, raw in read_lines(source):
        if number not in done:
            yield parse_line(number, raw, tuple(endpoints()))


COMMAND = Command("batch", configure, run)
