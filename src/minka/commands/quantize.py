"""Quantize a model: make its GGUF file smaller and faster, at some loss of quality.

Arguments are llama-quantize's (llama.cpp), and so is the result, byte for byte. An output that exists is replaced, but
only once the new one is complete.
"""

from __future__ import annotations

import sys
from argparse import Action, ArgumentParser, HelpFormatter, Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

from minka.commands.command import Command
from minka.errors import UsageError

if TYPE_CHECKING:
    from minka.tools.quantize_options import QuantizeOptions
    from minka.tools.quantize_plan import PlannedTensor
    from minka.tools.quantize_run import QuantizeReport


class _TensorTypes(Action):
    """Collects --tensor-type and --tensor-type-file in the order given: the first pattern found decides."""

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: object, option_string: str | None = None
    ) -> None:
        found = getattr(namespace, self.dest) or []
        setattr(namespace, self.dest, [*found, (str(option_string).endswith("file"), str(values))])


class _Help(HelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Paragraphs as wide as the terminal, and the table of types as it is."""
        parts = (part if part.startswith("types,") else fill(part, width) for part in text.strip().split("\n\n"))
        return "\n\n".join(parts)

    def _format_args(self, action: Action, default_metavar: str) -> str:
        """The words behind IN as they are meant, not as one word that repeats."""
        return str(action.metavar) if action.nargs == "+" else super()._format_args(action, default_metavar)


def configure(parser: ArgumentParser) -> None:
    """Positional arguments and flags of llama-quantize; the flags may be anywhere."""
    from minka.tools.quantize_types import FILE_TYPES

    parser.formatter_class = _Help
    rows = (f"  {'' if row.name == 'COPY' else row.number:>2}  {row.name:<9}  {row.doc}" for row in FILE_TYPES)
    parser.epilog = "\n".join(("types, by name or number:", *rows))
    parser.add_argument("source", metavar="IN", help="the model; of a split one, the first shard")
    text = "the new file (ggml-model-TYPE.gguf beside IN if not given), a type, and how many threads (one per core)"
    parser.add_argument("words", nargs="+", metavar="[OUT] TYPE [NTHREADS]", help=text)
    _switch(parser, "--allow-requantize", "quantize tensors again that are quantized already, at a loss")
    _switch(parser, "--leave-output-tensor", "leave output.weight as it is")
    _switch(parser, "--pure", "one type for all tensors, instead of a mixture")
    _value(parser, "--imatrix", "FILE", "importance matrix of `minka imatrix` or llama-imatrix")
    _list(parser, "--include-weights", "NAME", "use it only for tensors with this in their name; may be repeated")
    _list(parser, "--exclude-weights", "NAME", "do not use it for tensors with this in their name; may be repeated")
    _value(parser, "--output-tensor-type", "TYPE", "tensor type of output.weight")
    _value(parser, "--token-embedding-type", "TYPE", "tensor type of the token embeddings")
    text = "tensor type of the tensors in whose names the regular expression NAME is found; may be repeated"
    parser.add_argument("--tensor-type", action=_TensorTypes, dest="tensor_types", metavar="NAME=TYPE", help=text)
    text = "a file with more of these, with spaces or line ends between"
    parser.add_argument("--tensor-type-file", action=_TensorTypes, dest="tensor_types", metavar="FILE", help=text)
    _value(parser, "--prune-layers", "L0,L1,...", "layers to leave out; the later ones move up")
    _switch(parser, "--keep-split", "write as many shards as the model has; OUT is their prefix")
    text = "set metadata; TYPE is int, float, bool or str; may be repeated"
    _list(parser, "--override-kv", "KEY=TYPE:VALUE", text)
    _switch(parser, "--dry-run", "show what would be done to each tensor and how large the result would be")
    text = "rows of a tensor in memory at a time (default: 8192)"
    parser.add_argument("--max-buffer-size", type=int, default=8192, metavar="MIB", help=text)


def _switch(parser: ArgumentParser, flag: str, text: str) -> None:
    parser.add_argument(flag, action="store_true", help=text)


def _value(parser: ArgumentParser, flag: str, metavar: str, text: str) -> None:
    parser.add_argument(flag, metavar=metavar, help=text)


def _list(parser: ArgumentParser, flag: str, metavar: str, text: str) -> None:
    parser.add_argument(flag, action="append", default=[], metavar=metavar, help=text)


def run(args: Namespace) -> int:
    """Quantize, or only plan."""
    from minka.ggufs.terminal import show_progress
    from minka.tools.quantize_run import quantize

    words = _words(args.source, args.words)
    options = _options(args, words.threads)
    with show_progress("quantizing") as progress:
        report = quantize(words.source, words.type, words.output, options, progress=progress)
    _print_remarks(report)
    for line in _lines(report, dry_run=args.dry_run):
        print(line)
    return 0


COMMAND = Command("quantize", configure, run)


class _Words(NamedTuple):
    source: str
    output: str | None
    type: str
    threads: int


def _words(source: str, words: Sequence[str]) -> _Words:
    """IN [OUT] TYPE [NTHREADS]: the second word is a type if it can be one, as in llama-quantize."""
    from minka.tools.quantize_types import file_type, find_file_type

    output, rest = None, list(words)
    if not find_file_type(rest[0]) and len(rest) > 1:
        output = rest.pop(0)
    kind, *more = rest
    file_type(kind)
    if len(more) > 1:
        raise UsageError(f"there is one word too many: {more[1]}")
    if more and not (more[0].isascii() and more[0].isdigit() and len(more[0]) < 9 and int(more[0]) <= 512):
        raise UsageError(f"the number of threads must be 0 to 512, but got {more[0]!r}")
    return _Words(source, output, kind, int(more[0]) if more else 0)


def _options(args: Namespace, threads: int) -> QuantizeOptions:
    from minka.tools.quantize_options import QuantizeOptions, parse_override, parse_tensor_type, read_tensor_types

    tensor_types: list[tuple[str, str]] = []
    for is_file, value in args.tensor_types or []:
        tensor_types += read_tensor_types(Path(value)) if is_file else (parse_tensor_type(value),)
    return QuantizeOptions(
        threads=threads,
        imatrix=args.imatrix,
        include_weights=tuple(args.include_weights),
        exclude_weights=tuple(args.exclude_weights),
        output_tensor_type=args.output_tensor_type,
        token_embedding_type=args.token_embedding_type,
        tensor_types=tuple(tensor_types),
        pure=args.pure,
        leave_output_tensor=args.leave_output_tensor,
        allow_requantize=args.allow_requantize,
        prune_layers=_layers(args.prune_layers),
        keep_split=args.keep_split,
        override_kv=tuple(parse_override(words) for words in args.override_kv),
        max_buffer_size=args.max_buffer_size,
        dry_run=args.dry_run,
    )


def _layers(words: str | None) -> tuple[int, ...]:
    if words is None:
        return ()
    if not all(word.isascii() and word.isdigit() and len(word) < 9 for word in words.split(",")):
        raise UsageError(f"--prune-layers must be numbers with commas between, but got {words!r}")
    return tuple(int(word) for word in words.split(","))


# -- what is printed


def _print_remarks(report: QuantizeReport) -> None:
    for one in report.fallbacks:
        tensors = "1 tensor" if one.n_tensors == 1 else f"{one.n_tensors} tensors"
        words = f"with rows of {one.columns} values cannot be {one.wanted}: {one.target} instead"
        print(f"{tensors} {words}", file=sys.stderr)
    if report.imatrix:
        entries, chunks, datasets = report.imatrix
        names = f", of {', '.join(datasets)}" if datasets else ""
        print(f"importance matrix: {entries} entries from {chunks} chunks{names}", file=sys.stderr)


def _lines(report: QuantizeReport, *, dry_run: bool) -> Iterator[str]:
    if dry_run:
        yield from _tensor_table(report.tensors)
        yield ""
    yield from _type_table(report)
    yield ""
    if dry_run:
        yield f"{report.type.name}: nothing was written"
    elif len(report.paths) > 1:
        yield f"wrote {report.paths[0]} and {len(report.paths) - 1} more in {report.seconds:.1f} s"
    else:
        yield f"wrote {report.paths[0]} in {report.seconds:.1f} s"


def _tensor_table(tensors: Sequence[PlannedTensor]) -> Iterator[str]:
    from minka.ggufs.dump import human_size
    from minka.ggufs.split import canonical_dims

    rows = [("tensor", "shape", "from", "to", "before", "after")]
    for tensor in tensors:
        shape = " x ".join(map(str, canonical_dims(tensor.dims)))
        sizes = human_size(tensor.before), human_size(tensor.after)
        rows.append((tensor.name, shape, tensor.source.name, tensor.target.name, *sizes))
    yield from _table(rows, right=2)


def _type_table(report: QuantizeReport) -> Iterator[str]:
    """Tensors and sizes by the type that they have in the new file, and all together."""
    from minka.ggufs.dump import bits_per_weight, human_size

    groups: dict[str, list[PlannedTensor]] = {}
    for tensor in report.tensors:
        groups.setdefault(tensor.target.name, []).append(tensor)
    rows = [("type", "tensors", "before", "after", "bits/weight")]
    largest_first = sorted(groups.items(), key=lambda item: -sum(tensor.after for tensor in item[1]))
    for name, members in (*largest_first, ("all", report.tensors)):
        before, after = sum(one.before for one in members), sum(one.after for one in members)
        bits = bits_per_weight(after, sum(one.n_elements for one in members))
        rows.append((name, str(len(members)), human_size(before), human_size(after), f"{bits:.2f}"))
    yield from _table(rows, right=4)


def _table(rows: Sequence[Sequence[str]], right: int) -> Iterator[str]:
    """Aligned columns, the last `right` of them to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left = len(widths) - right
    for row in rows:
        cells = (
            cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
