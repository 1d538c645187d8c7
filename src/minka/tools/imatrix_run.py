"""Makes an importance matrix: evaluates a text in chunks, collects activations, saves now and then, or merges files.

The windows, the counting and the perplexity printed on the way are llama-imatrix's (tools/imatrix/imatrix.cpp of
llama.cpp). One batch of logits is in memory at a time. Knows no command line and no terminal.
"""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from minka.errors import ModelError, UsageError
from minka.ggufs.atomic import destination
from minka.hub import locate
from minka.native.model import Model
from minka.params import ContextParams, ModelParams
from minka.tools.imatrix_collect import Collector
from minka.tools.imatrix_file import Imatrix, partial, read_imatrix, write_dat, write_gguf
from minka.tools.imatrix_windows import Likelihood, Perplexity, Tokens, Windows
from minka.tools.scoring_context import Hardware

DEFAULT_OUTPUT = Path("imatrix.gguf")
DEFAULT_CHUNK = 512


@dataclass(frozen=True, slots=True)
class ImatrixOptions:
    """What to collect from, and where to save it. Sizes of chunk and batch are those of the context."""

    file: str | Path | None = None
    """Text file; its name is stored as the dataset, spelled as it is here."""
    strip: bool = True
    """Drop one line end at the end of the file."""
    text: str = ""
    """Text, when there is no file. With neither, files are merged and no model is needed."""
    output: Path = DEFAULT_OUTPUT
    format: Literal["gguf", "dat"] = "gguf"
    in_files: tuple[Path, ...] = ()
    """Importance matrices to start from."""
    resume: bool = False
    """Go on where `output` stopped: it must come from the same file with the same size of chunks."""
    chunks: int = -1
    """Most chunks to evaluate, -1 for all."""
    from_chunk: int = 0
    """Chunks of the text to skip."""
    process_output: bool = False
    """Collect for output.weight as well."""
    perplexity: bool = True
    parse_special: bool = False
    """Read the names of control tokens in the text as those tokens."""
    output_frequency: int = 10
    """Chunks after which the output is saved, 0 for only at the end."""
    save_frequency: int = 0
    """Chunks after which a copy is saved as OUTPUT.at_N, 0 for never."""


@dataclass(frozen=True, slots=True)
class ImatrixReport:
    """What was saved."""

    path: Path
    n_entries: int
    n_chunks: int
    """Chunks evaluated now."""
    chunk_count: int
    """Chunks that the file stands for."""
    chunk_size: int
    perplexity: Perplexity | None
    partial: tuple[tuple[str, float], ...]
    """Weights with experts that no token was routed to, and the share (0..1) of their experts that have data."""


class ChunkProgress(Protocol):
    """Called after each batch, and once before the first, from the thread that does the work."""

    def __call__(self, done: int, total: int, perplexity: float | None) -> None:
        """`done` of `total` chunks are through; `perplexity` is that so far, None if it is not computed."""


def _silent(done: int, total: int, perplexity: float | None) -> None:
    pass


def imatrix(
    options: ImatrixOptions,
    model: ModelParams | None = None,
    context: ContextParams | None = None,
    *,
    hardware: Hardware | None = None,
    progress: ChunkProgress = _silent,
) -> ImatrixReport:
    """Collect an importance matrix of a model over a text and save it; without a text, merge files.

    `context.n_ctx` is the size of a chunk in tokens (0: 512), `context.n_batch` the most tokens of a batch: several
    chunks are evaluated together if they fit, and a chunk that does not fit is evaluated in pieces.

    Raises:
        UsageError: there is nothing to do, the text is too short, or `resume` does not fit the output.
        ModelError: the model or an importance matrix cannot be used, or an activation is not finite.
    """
    context = context or ContextParams()
    chunk_size = context.n_ctx or DEFAULT_CHUNK
    destination(options.output, () if options.file is None else [Path(options.file)])
    run = _Run(options, chunk_size)
    if options.file is None and not options.text:
        if not options.in_files:
            raise UsageError("there is no text to evaluate (--file) and no importance matrix to merge (--in-file)")
        run.save()
        return run.report(0, None)
    text = options.text if options.file is None else _read_text(options.file, strip=options.strip)
    params, hardware = model or ModelParams(), hardware or Hardware()
    path = locate(params).path
    destination(options.output, [path])
    with closing(Model.load(path, params, placement=hardware.placement)) as loaded:
        return run.evaluate(loaded, context, hardware, text, progress)


class _Run:
    """One call of `imatrix`: the collector, and when to save it."""

    def __init__(self, options: ImatrixOptions, chunk_size: int) -> None:
        self.options = options
        self.chunk_size = chunk_size
        self.collector = Collector(process_output=options.process_output)
        self.datasets: list[str] = []
        self.skip = options.from_chunk
        for path in options.in_files:
            self._merge(path, read_imatrix(path))
        if options.resume and options.output.exists():
            self._resume(read_imatrix(options.output))
        elif options.file is not None:
            self.datasets.append(_dataset(options.file))
        self.saved_at = self.collector.chunks(chunk_size)

    def _merge(self, path: Path, found: Imatrix) -> None:
        self.collector.merge(found, self.chunk_size, str(path))
        self.datasets += found.datasets

    def _resume(self, found: Imatrix) -> None:
        output, file = self.options.output, self.options.file
        if file is None or found.datasets != (_dataset(file),) or self.options.in_files:
            raise UsageError(f"{output} does not come from this --file alone, so it cannot be resumed with it")
        if found.chunk_size != self.chunk_size:
            raise UsageError(
                f"{output} has chunks of {found.chunk_size or 'unknown'} tokens, so it cannot be resumed with chunks "
                f"of {self.chunk_size} (--ctx-size)"
            )
        self._merge(output, found)
        self.skip += found.chunk_count

    def evaluate(
        self, model: Model, context: ContextParams, hardware: Hardware, text: str, progress: ChunkProgress
    ) -> ImatrixReport:
        """Evaluate a text chunk by chunk, and save."""
        tokens = np.array(
            model.vocab.tokenize(text, add_special=True, parse_special=self.options.parse_special), np.int32
        )
        n_chunks = self._count(tokens)
        tokens = tokens[self.skip * self.chunk_size :][: n_chunks * self.chunk_size]
        likelihood = Likelihood() if self.options.perplexity else None
        if n_chunks:
            with (
                hardware.threadpools(context) as threads,
                closing(Windows(model, context, self.chunk_size, self.collector, hardware, threads)) as windows,
            ):
                self._evaluate(windows, tokens.reshape(n_chunks, -1), likelihood, progress)
        if not self.collector.entries:
            raise ModelError("no weight of this model saw any activation: there is nothing to save")
        self.save()
        return self.report(n_chunks, likelihood.perplexity() if likelihood else None)

    def _count(self, tokens: Tokens) -> int:
        """Chunks to evaluate. Raises UsageError if the text is too short for any."""
        size, whole = self.chunk_size, len(tokens) // self.chunk_size
        if whole < 2:
            raise UsageError(
                f"the text has {len(tokens)} tokens, and chunks of {size} need at least {2 * size}; give a longer text "
                "or a smaller --ctx-size"
            )
        if self.options.from_chunk >= whole:
            raise UsageError(f"the text has {whole} chunks of {size} tokens, so it cannot begin at {self.skip}")
        left = max(whole - self.skip, 0)
        if self.options.chunks < 0:
            return left
        done = self.skip - self.options.from_chunk
        return max(min(left, self.options.chunks - done), 0)

    def _evaluate(
        self, windows: Windows, chunks: Tokens, likelihood: Likelihood | None, progress: ChunkProgress
    ) -> None:
        progress(0, len(chunks), None)
        for start in range(0, len(chunks), windows.n_seq):
            group = chunks[start : start + windows.n_seq]
            windows.evaluate(group, likelihood)
            self._save_now_and_then()
            so_far = likelihood.perplexity() if likelihood else None
            progress(start + len(group), len(chunks), so_far.value if so_far else None)

    def _save_now_and_then(self) -> None:
        """Save when a multiple of a frequency was reached or passed since the last call."""
        now, before = self.collector.chunks(self.chunk_size), self.saved_at
        self.saved_at = now
        every, copies = self.options.output_frequency, self.options.save_frequency
        if every > 0 and now // every > before // every:
            self.save()
        if copies > 0 and now // copies > before // copies:
            self.save(f".at_{now}")

    def save(self, suffix: str = "") -> None:
        """Write the output, or a copy with a suffix."""
        output = self.options.output
        write = write_dat if self.options.format == "dat" else write_gguf
        write(
            output.with_name(output.name + suffix),
            Imatrix(
                self.collector.entries, tuple(self.datasets), self.collector.chunks(self.chunk_size), self.chunk_size
            ),
        )

    def report(self, n_chunks: int, perplexity: Perplexity | None) -> ImatrixReport:
        """What was saved."""
        return ImatrixReport(
            self.options.output,
            len(self.collector.entries),
            n_chunks,
            self.collector.chunks(self.chunk_size),
            self.chunk_size,
            perplexity,
            tuple(partial(self.collector.entries)),
        )


def _dataset(path: str | Path) -> str:
    """The file's name as it is stored: as it was given, in UTF-8."""
    return os.fsencode(path).decode("utf-8", "replace")


def _read_text(path: str | Path, *, strip: bool) -> str:
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the text {path}: {error.strerror or error}") from error
    return (raw.removesuffix(b"\n") if strip else raw).decode("utf-8", "replace")
