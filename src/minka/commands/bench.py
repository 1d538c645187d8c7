"""Measure tokens per second of a model for all sets of parameters, or of a server under load.

Parameters, tests and outputs are llama-bench's (llama.cpp). A parameter takes a list with commas, FIRST-LAST,
FIRST-LAST+STEP or FIRST-LAST*FACTOR, and may be repeated.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from minka.commands.arguments import parse_bool
from minka.commands.bench_serve import configure_serve, run_serve
from minka.commands.command import Command
from minka.commands.llama_flags import add_list_devices
from minka.commands.meter import Meter
from minka.errors import UsageError
from minka.params import (
    CACHE_TYPES,
    INT32_MAX,
    LAZY_MODES,
    LOAD_MODES,
    NUMA_MODES,
    BadValueError,
    LogParams,
    ModelParams,
)
from minka.version import VERSION

if TYPE_CHECKING:
    from minka.tools.bench_matrix import Matrix
    from minka.tools.bench_print import Printer
    from minka.tools.bench_run import BenchRun, Measured, Step

INTERRUPTED = 130
FORMATS = ("csv", "json", "jsonl", "md", "sql")


class Parameter(NamedTuple):
    """A parameter with a list of values: its field in the matrix, its flags, its value in the help, what it is."""

    field: str
    flags: tuple[str, ...]
    metavar: str
    default: str
    text: str


# fmt: off
PARAMETERS = (
    Parameter("n_prompt", ("-p", "--n-prompt"), "N", "512", "tokens of a prompt; 0 leaves these tests out"),
    Parameter("n_gen", ("-n", "--n-gen"), "N", "128", "tokens to generate; 0 leaves these tests out"),
    Parameter("n_pg", ("-pg",), "PP,TG", "none", "a prompt and a generation in one test"),
    Parameter("n_depth", ("-d", "--n-depth"), "N", "0", "tokens in the context before what is measured"),
    Parameter("n_batch", ("-b", "--batch-size"), "N", "2048", "the most tokens in one batch"),
    Parameter("n_ubatch", ("-ub", "--ubatch-size"), "N", "512", "the most tokens computed at once"),
    Parameter("type_k", ("-ctk", "--cache-type-k"), "TYPE", "f16", "type of the keys in the KV cache"),
    Parameter("type_v", ("-ctv", "--cache-type-v"), "TYPE", "f16", "type of the values in the KV cache"),
    Parameter("n_threads", ("-t", "--threads"), "N", "physical cores", "CPU threads"),
    Parameter("cpu_mask", ("-C", "--cpu-mask"), "HEX", "0x0", "processors for the threads, 0x0 for any"),
    Parameter("cpu_strict", ("--cpu-strict",), "0|1", "0", "each thread on a processor of its own"),
    Parameter("poll", ("--poll",), "0..100", "50", "how much idle threads spin"),
    Parameter("n_gpu_layers", ("-ngl", "--n-gpu-layers"), "N", "-1", "layers on the GPU, -1 for all that fit"),
    Parameter("n_cpu_moe", ("-ncmoe", "--n-cpu-moe"), "N", "0", "layers whose experts stay on the CPU"),
    Parameter("split_mode", ("-sm", "--split-mode"), "none|layer|row|tensor", "layer", "how GPUs share the model"),
    Parameter("main_gpu", ("-mg", "--main-gpu"), "N", "0", "the GPU for everything (split mode none) or for results"),
    Parameter("no_kv_offload", ("-nkvo", "--no-kv-offload"), "0|1", "0", "keep the KV cache off the GPU"),
    Parameter("flash_attn", ("-fa", "--flash-attn"), "on|off|auto", "auto", "flash attention"),
    Parameter("devices", ("-dev", "--device"), "D0/D1/...", "auto", "devices for the weights, none for the CPU"),
    Parameter("load_mode", ("-lm", "--load-mode"), "|".join(LOAD_MODES), "auto", "how weights get into memory"),
    Parameter("lazy_mode", ("-lzm", "--lazy-mode"), "on|auto|off", "auto", "read rows when they are needed"),
    Parameter("embeddings", ("-embd", "--embeddings"), "0|1", "0", "compute embeddings"),
    Parameter("tensor_split", ("-ts", "--tensor-split"), "S0/S1/...", "0", "each GPU's share of the model"),
    Parameter("tensor_buft_overrides", ("-ot", "--override-tensor"), "PATTERN=TYPE;...", "none",
              "put tensors whose name fits into a buffer type; sets are separated by commas"),
    Parameter("no_op_offload", ("-nopo", "--no-op-offload"), "0|1", "0", "keep large operations on host weights here"),
    Parameter("no_host", ("--no-host",), "0|1", "0", "leave out the host buffer"),
    Parameter("repack", ("--repack",), "0|1", "1", "rearrange weights for faster kernels"),
    Parameter("fit_target", ("-fitt", "--fit-target"), "MIB", "off", "only 0: Minka changes nothing to fit the memory"),
    Parameter("fit_min_ctx", ("-fitc", "--fit-ctx"), "N", "off", "only 0, see --fit-target"),
)
"""The parameters of the matrix but for the models, in the order of the help."""
# fmt: on


def configure(parser: ArgumentParser) -> None:
    """All parameters, and `serve` with its own."""
    _add_options(parser)
    group = parser.add_argument_group("Parameters of the tests")
    for flags, text in (
        (("-m", "--model"), "model files, with commas between"),
        (("-hf", "-hfr", "--hf-repo"), "Hugging Face repositories USER/MODEL[:QUANT]"),
        (("-hff", "--hf-file"), "the files in the repositories"),
    ):
        group.add_argument(*flags, action="append", default=[], metavar=flags[0].upper().strip("-"), help=text)
    for parameter in PARAMETERS:
        text = f"{parameter.text} (default: {parameter.default})".replace("%", "%%")
        group.add_argument(
            *parameter.flags, dest=parameter.field, action="append", default=[], metavar=parameter.metavar, help=text
        )
    actions = parser.add_subparsers(metavar="serve", title="load test of a server")
    configure_serve(actions.add_parser("serve", help="measure a server under load; see `minka bench serve --help`"))


def _add_options(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("Options")
    group.add_argument("--version", action="version", version=f"minka {VERSION}", help="print the version")
    group.add_argument("-r", "--repetitions", type=int, default=5, metavar="N", help="runs of each test (default: 5)")
    group.add_argument("--delay", type=int, default=0, metavar="S", help="seconds of rest before a test (default: 0)")
    text = f"output on stdout, one of {', '.join(FORMATS)} (default: md)"
    group.add_argument("-o", "--output", choices=(*FORMATS, "none"), default="md", metavar="FORMAT", help=text)
    text = "output on stderr as well"
    group.add_argument("-oe", "--output-err", choices=(*FORMATS, "none"), default="none", metavar="FORMAT", help=text)
    group.add_argument("--progress", action="store_true", help="print what is being done")
    group.add_argument("--no-warmup", dest="warmup", action="store_false", help="leave out the first, untimed run")
    group.add_argument("--prio", type=int, default=0, metavar="-1..3", help="priority of the process (default: 0)")
    text = "how to spread over NUMA nodes"
    group.add_argument("--numa", choices=NUMA_MODES, metavar="|".join(NUMA_MODES), help=text)
    add_list_devices(group)
    group.add_argument("-rpc", "--rpc", metavar="HOSTS", help="RPC servers to use as devices")
    text = "Hugging Face access token (env: HF_TOKEN)"
    group.add_argument("-hft", "--hf-token", metavar="TOKEN", help=text)
    group.add_argument("--offline", action="store_true", help="never use the network, only the cache")
    group.add_argument("-v", "--verbose", action="store_true", help="show libllama's log")


def run(args: Namespace) -> int:
    """Measure, or hand over to `serve`."""
    if hasattr(args, "serve_url"):
        return run_serve(args)
    return _bench(args)


COMMAND = Command("bench", configure, run)


def _bench(args: Namespace) -> int:
    from minka import logs
    from minka.native.placement import init_numa
    from minka.native.threadpool import set_priority
    from minka.tools.bench_run import BenchOptions, BenchRun

    logs.configure(LogParams(verbose=args.verbose, log_disable=not args.verbose))
    if args.rpc:
        raise UsageError("--rpc is not supported: this build of libllama has no RPC backend")
    if args.delay < 0:
        raise UsageError(f"--delay must be 0 or more, but got {args.delay}")
    matrix = read_matrix(args)
    options = BenchOptions(args.repetitions, args.delay, args.warmup, args.prio)
    if args.numa:
        init_numa(args.numa)
    set_priority(args.prio)
    with Meter("tests", len(matrix.tests()), quiet=args.progress) as meter:

        def show(step: Step) -> None:
            if args.progress:
                line = f"minka bench: benchmark {step.number}/{step.total}: {step.text}"
                print(line, file=sys.stderr, flush=True)
            else:
                meter.describe(step.text)

        return _measure(BenchRun(matrix, options, show), matrix, _outputs(args, meter), meter)


class Output(NamedTuple):
    """A format and where it goes."""

    printer: Printer
    write: Callable[[str], None]


def _outputs(args: Namespace, meter: Meter) -> list[Output]:
    from minka.tools.bench_print import printer

    wanted = ((args.output, sys.stdout), (args.output_err, sys.stderr))
    return [Output(printer(name), partial(meter.write, out=out)) for name, out in wanted if name != "none"]


def _measure(run: BenchRun, matrix: Matrix, outputs: list[Output], meter: Meter) -> int:
    """Print the tests as they are measured; after a Ctrl-C also what there is of the last one."""
    code = 0
    for output in outputs:
        output.write(output.printer.header(matrix, run.machine))
    with closing(iter(run)) as results:
        try:
            for result in results:
                _print_test(outputs, result)
                meter.advance()
        except KeyboardInterrupt:
            code = INTERRUPTED
            if run.partial is not None:
                _print_test(outputs, run.partial)
    for output in outputs:
        output.write(output.printer.footer(run.machine))
    if code:
        n = len(run.partial.samples_ns) if run.partial else 0
        print(f"interrupted{f'; the last test has {n} runs only' if n else ''}", file=sys.stderr)
    return code


def _print_test(outputs: list[Output], result: Measured) -> None:
    for output in outputs:
        output.write(output.printer.test(result))


# -- the matrix of a command line


def read_matrix(args: Namespace) -> Matrix:
    """The values of all parameters. Raises UsageError with the flag for one that cannot be."""
    from minka.tools.bench_matrix import Matrix

    given: dict[str, tuple[object, ...]] = {}
    for parameter in PARAMETERS:
        texts: list[str] = getattr(args, parameter.field)
        try:
            values = tuple(value for text in texts for value in parse_values(parameter.field, text))
        except UsageError as error:
            raise UsageError(f"{parameter.flags[-1]}: {error}") from None
        if values:
            given[parameter.field] = values
    return Matrix(model=_models(args), **given)  # type: ignore[arg-type]


def parse_values(field: str, text: str) -> Iterable[object]:
    """The values that a text means for a parameter. Raises UsageError."""
    from minka.tools.bench_matrix import parse_bools, parse_pair, parse_range, parse_splits, parse_words

    if field in _CHOICES:
        return parse_words(text, _CHOICES[field])
    if field in _BOOLS:
        return parse_bools(text)
    match field:
        case "n_pg":
            return [parse_pair(text)]
        case "flash_attn":
            return [_switch(word) for word in text.split(",")]
        case "cpu_mask":
            return text.split(",")
        case "devices":
            return [_devices(word) for word in text.split(",")]
        case "tensor_split":
            return parse_splits(text)
        case "tensor_buft_overrides":
            return [tuple(_overrides(word.split(";"))) if word else () for word in text.split(",")]
        case _:
            low, high = _LIMITS.get(field, (0, INT32_MAX))
            return parse_range(text, low=low, high=high)


_CHOICES = {
    "type_k": CACHE_TYPES,
    "type_v": CACHE_TYPES,
    "split_mode": ("none", "layer", "row", "tensor"),
    "load_mode": LOAD_MODES,
    "lazy_mode": LAZY_MODES,
}
_BOOLS = ("cpu_strict", "no_kv_offload", "embeddings", "no_op_offload", "no_host", "repack")
_LIMITS = {
    "n_gpu_layers": (-INT32_MAX, INT32_MAX),
    "n_threads": (1, 512),
    "poll": (0, 100),
    "n_batch": (1, INT32_MAX),
    "n_ubatch": (1, INT32_MAX),
}


def _switch(word: str) -> str:
    if word in ("auto", "-1"):
        return "auto"
    try:
        return "on" if parse_bool(word) else "off"
    except BadValueError:
        raise UsageError(f"{word!r} is not one of on, off, auto") from None


def _overrides(words: Iterable[str]) -> Iterable[tuple[str, str]]:
    from minka.native.placement import parse_overrides

    return parse_overrides(words)


def _devices(word: str) -> tuple[str, ...] | None:
    from minka.native.placement import check_device

    names = [name.strip() for name in word.split("/")]
    return None if names == ["auto"] else tuple(check_device(name) for name in names if names != ["none"])


def _models(args: Namespace) -> tuple[str, ...]:
    """Paths of all models: the files, then the repositories, or the demo model if there are none."""
    from minka.hub import locate

    words = {name: [w for text in getattr(args, name) for w in text.split(",") if w] for name in _SOURCES}
    token = args.hf_token or os.environ.get("HF_TOKEN") or None
    files = [*words["hf_file"], *[None] * len(words["hf_repo"])]
    repos = [
        ModelParams(hf_repo=repo, hf_file=file, hf_token=token, offline=args.offline)
        for repo, file in zip(words["hf_repo"], files, strict=False)
    ]
    wanted = [*words["model"], *(str(locate(params).path) for params in repos)]
    return tuple(wanted) or (str(locate(ModelParams()).path),)


_SOURCES = ("model", "hf_repo", "hf_file")
