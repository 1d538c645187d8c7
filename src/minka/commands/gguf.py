"""Look into GGUF files, change their metadata, split, merge, hash, compare, check and report on them.

Each action can also be called from Python, as a function of minka.ggufs, which knows no command line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from minka.commands.command import Command
from minka.errors import UsageError

if TYPE_CHECKING:
    from minka.ggufs.hashes import Algorithm
    from minka.ggufs.read import ByteOrder, GgufFile
    from minka.ggufs.vocab import Template
    from minka.ggufs.write import NewValue

ALGORITHM_FLAGS = ("xxh64", "sha1", "sha256", "uuid")
EXIT_DIFFERENT = 1
EXIT_NOT_IN_MANIFEST = 3
"""What gguf-hash exits with when the manifest says nothing about the file."""


class Action(NamedTuple):
    """A sub-command of `minka gguf`."""

    name: str
    summary: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare all actions, `metadata` with its own two."""
    actions = parser.add_subparsers(metavar="ACTION", required=True, title="actions")
    metadata = actions.add_parser("metadata", help="set a value in place, or write a copy with other metadata")
    inner = metadata.add_subparsers(metavar="ACTION", required=True, title="actions")
    for action in ACTIONS:
        group, _, name = action.name.rpartition(" ")
        sub = (inner if group else actions).add_parser(name, help=action.summary, description=action.summary)
        action.configure(sub)
        sub.set_defaults(action=action.run)


def run(args: argparse.Namespace) -> int:
    """Do the action that was asked for."""
    action: Callable[[argparse.Namespace], int] = args.action
    return action(args)


COMMAND = Command("gguf", configure, run)


# -- shared arguments


def _file(parser: argparse.ArgumentParser, name: str = "file", text: str = "GGUF file") -> None:
    parser.add_argument(name, type=Path, metavar=name.upper(), help=text)


def _flag(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    parser.add_argument(name, action="store_true", help=text)


def _force(parser: argparse.ArgumentParser) -> None:
    _flag(parser, "--force", "overwrite what exists, and ask nothing")


def _dry_run(parser: argparse.ArgumentParser) -> None:
    _flag(parser, "--dry-run", "say what would be done, and write nothing")


# -- dump


def _dump_arguments(parser: argparse.ArgumentParser) -> None:
    _file(parser)
    shape = parser.add_mutually_exclusive_group()
    for name, text in (
        ("--json", "print JSON in the shape of gguf-py's gguf-dump"),
        ("--markdown", "print Markdown"),
        ("--data-offset", "print only where the tensor data begins"),
        ("--data-alignment", "print only the alignment of the tensor data"),
    ):
        shape.add_argument(name, action="store_true", help=text)
    _flag(parser, "--json-array", "put whole arrays into the JSON")
    _flag(parser, "--no-tensors", "leave the tensors out")
    _flag(parser, "--data", "read the tensors too, and show minimum, maximum, mean and deviation of each")


def _dump(args: argparse.Namespace) -> int:
    from minka.ggufs.dump import all_stats, to_json, to_markdown
    from minka.ggufs.read import open_gguf
    from minka.ggufs.tables import print_dump
    from minka.ggufs.terminal import draw, show_progress

    with open_gguf(args.file) as source:
        if args.data_offset or args.data_alignment:
            print(source.data_start if args.data_offset else source.alignment)
            return 0
        if args.markdown:
            print(to_markdown(source, tensors=not args.no_tensors), end="")
            return 0
        data = None
        if args.data and not args.no_tensors:
            with show_progress("reading") as progress:
                data = all_stats(source, progress)
        if args.json:
            print(json.dumps(to_json(source, tensors=not args.no_tensors, arrays=args.json_array, data=data)))
        else:
            draw(lambda console: print_dump(console, source, tensors=not args.no_tensors, data=data))
    return 0


# -- metadata


def _set_arguments(parser: argparse.ArgumentParser) -> None:
    _file(parser)
    parser.add_argument("key", metavar="KEY", help="a key whose value is a number or a bool")
    parser.add_argument("value", metavar="VALUE", help="the new value; it keeps its type")
    _force(parser)
    _dry_run(parser)


def _set(args: argparse.Namespace) -> int:
    from minka.ggufs.metadata import set_value
    from minka.ggufs.terminal import confirm

    change = set_value(args.file, args.key, args.value, dry_run=True)
    print(f"{change.key} ({change.type.name.lower()}): {change.old} -> {change.new}")
    if change.old == change.new or args.dry_run:
        return 0
    if args.force or confirm(f"{args.file} is changed in place, and a wrong value can make it unusable"):
        set_value(args.file, args.key, args.value)
        return 0
    return 1


def _new_arguments(parser: argparse.ArgumentParser) -> None:
    _file(parser, "input")
    _file(parser, "output", "the copy")
    text = "set or add a key; TYPE is u8 to u64, i8 to i64, f32, f64, bool, str, or [TYPE] with a JSON list"
    parser.add_argument("--set", action="append", default=[], metavar="KEY=TYPE:VALUE", help=text)
    remove = ("--remove", "--remove-metadata")
    parser.add_argument(*remove, action="append", default=[], metavar="KEY", help="remove a key")
    parser.add_argument("--general-name", metavar="TEXT", help="set general.name")
    parser.add_argument("--general-description", metavar="TEXT", help="set general.description")
    parser.add_argument("--pre-tokenizer", metavar="TEXT", help="set tokenizer.ggml.pre")
    template = parser.add_mutually_exclusive_group()
    text = "replace the chat template by a file's, by standard input's (-) or by this text, if it has a {"
    template.add_argument("--chat-template", metavar="FILE|-|TEXT", help=text)
    template.add_argument("--chat-template-file", type=Path, metavar="FILE", help="replace it by a file's")
    text = "replace it by the one in a tokenizer_config.json"
    template.add_argument("--chat-template-config", type=Path, metavar="FILE", help=text)
    _pair(parser, "--special-token", ("NAME", "TOKEN"), "make a token special: bos, eos, unknown, padding, ...")
    _pair(parser, "--special-token-by-id", ("NAME", "ID"), "the same by the token's id")
    _force(parser)
    _dry_run(parser)


def _pair(parser: argparse.ArgumentParser, name: str, metavar: tuple[str, str], text: str) -> None:
    parser.add_argument(name, nargs=2, action="append", default=[], metavar=metavar, help=text)


def _new(args: argparse.Namespace) -> int:
    from minka.ggufs.metadata import describe, rewrite
    from minka.ggufs.read import open_gguf
    from minka.ggufs.terminal import show_progress

    with open_gguf(args.input) as source:
        edits = _edits(args, source)
        if not edits:
            raise UsageError("nothing to change; give --set, --remove, --chat-template or another of its flags")
        lines = describe(source, edits)
        if not args.dry_run:
            with show_progress("writing") as progress:
                rewrite(source, args.output, edits, force=args.force, progress=progress)
    print("\n".join(lines))
    if not args.dry_run:
        print(f"wrote {args.output}")
    return 0


def _edits(args: argparse.Namespace, source: GgufFile) -> dict[str, NewValue | None]:
    from minka.ggufs.layout import ValueType
    from minka.ggufs.metadata import parse_setting
    from minka.ggufs.vocab import chat_template_edits, special_token
    from minka.ggufs.write import NewValue

    edits: dict[str, NewValue | None] = dict.fromkeys(args.remove)
    template = _chat_template(args)
    if template is not None:
        edits |= chat_template_edits(source, template)
    for key, text in (
        ("general.name", args.general_name),
        ("general.description", args.general_description),
        ("tokenizer.ggml.pre", args.pre_tokenizer),
    ):
        if text is not None:
            edits[key] = NewValue(ValueType.STRING, text)
    edits |= dict(special_token(source, name, token) for name, token in args.special_token)
    edits |= dict(special_token(source, name, _token_id(text)) for name, text in args.special_token_by_id)
    return edits | dict(parse_setting(words) for words in args.set)


def _token_id(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise UsageError(f"{text!r} is no token id")
    return int(text)


def _chat_template(args: argparse.Namespace) -> Template | None:
    from minka.ggufs.vocab import parse_template, read_text, template_of_config

    if args.chat_template_config:
        return template_of_config(args.chat_template_config)
    if args.chat_template_file:
        return read_text(args.chat_template_file)
    words: str | None = args.chat_template
    if words is None:
        return None
    return parse_template(words if "{" in words else sys.stdin.read() if words == "-" else read_text(Path(words)))


# -- split and merge


def _split_arguments(parser: argparse.ArgumentParser) -> None:
    _file(parser, "input")
    parser.add_argument("prefix", type=Path, metavar="OUT-PREFIX", help="shards are OUT-PREFIX-00001-of-0000N.gguf ...")
    limit = parser.add_mutually_exclusive_group()
    limit.add_argument("--split-max-tensors", type=int, default=128, metavar="N", help="tensors of a shard (128)")
    limit.add_argument(
        "--split-max-size", metavar="N(M|G)", help="tensor data of a shard, in units of 10^6 or 10^9 bytes"
    )
    _flag(parser, "--no-tensor-first-split", "put only metadata into the first shard")
    _force(parser)
    _dry_run(parser)


def _split(args: argparse.Namespace) -> int:
    from minka.ggufs.read import open_gguf
    from minka.ggufs.split import SplitRule, parse_size, plan_split, split
    from minka.ggufs.terminal import show_progress

    max_bytes = parse_size(args.split_max_size) if args.split_max_size else None
    rule = SplitRule(args.split_max_tensors, max_bytes, no_tensor_first=args.no_tensor_first_split)
    with open_gguf(args.input) as source:
        shards = plan_split(source, rule)
        print(f"n_split: {len(shards)}")
        for i, shard in enumerate(shards, 1):
            print(f"split {i:05d}: n_tensors = {len(shard.tensors)}, total_size = {shard.n_bytes // 10**6}M")
        if args.dry_run:
            return 0
        with show_progress("splitting") as progress:
            paths = split(source, args.prefix, rule, force=args.force, progress=progress)
    print(f"wrote {paths[0]}" + (f" and {len(paths) - 1} more" if len(paths) > 1 else ""))
    return 0


def _merge_arguments(parser: argparse.ArgumentParser) -> None:
    _file(parser, "first", "the first shard; the others lie beside it")
    _file(parser, "output", "the whole file")
    _flag(
        parser, "--drop-split-keys", "leave out the split.* keys, which gives back the file from before its first split"
    )
    _flag(parser, "--delete-splits", "delete the shards once the whole file is in place")
    _force(parser)
    _dry_run(parser)


def _merge(args: argparse.Namespace) -> int:
    from contextlib import ExitStack

    from minka.ggufs.merge import merge, open_shards
    from minka.ggufs.terminal import show_progress

    with ExitStack() as stack:
        shards = open_shards(stack, args.first)
        for i, shard in enumerate(shards, 1):
            print(f"shard {i:05d}: {shard.path}, {len(shard.tensors)} tensors")
    if args.dry_run:
        return 0
    with show_progress("merging") as progress:
        merge(
            args.first,
            args.output,
            drop_split_keys=args.drop_split_keys,
            delete_shards=args.delete_splits,
            force=args.force,
            progress=progress,
        )
    print(f"wrote {args.output}" + (", deleted the shards" if args.delete_splits else ""))
    return 0


# -- hash


def _hash_arguments(parser: argparse.ArgumentParser) -> None:
    _file(parser)
    for name in ALGORITHM_FLAGS:
        _flag(
            parser,
            f"--{name}",
            {"uuid": "print the UUIDv5 of the data", "xxh64": "use xxh64 (package xxhash)"}.get(name, f"use {name}"),
        )
    _flag(parser, "--all", "use sha1 and sha256, and xxh64 where its package is installed")
    _flag(parser, "--no-layer", "leave the hashes of single tensors out")
    parser.add_argument("--manifest", type=Path, metavar="OUT", help="write the hashes to a file")
    parser.add_argument("-c", "--check", type=Path, metavar="MANIFEST", help="compare the hashes with a manifest")
    _flag(parser, "--force", "overwrite the manifest")


def _hash(args: argparse.Namespace) -> int:
    from minka.ggufs.atomic import replacing
    from minka.ggufs.hashes import hash_file
    from minka.ggufs.read import open_gguf
    from minka.ggufs.terminal import show_progress

    if args.check:
        return _hash_check(args)
    with open_gguf(args.file) as source, show_progress("hashing") as progress:
        entries = hash_file(source, _algorithms(args) or ("sha256",), layers=not args.no_layer, progress=progress)
        if not args.manifest:
            for entry in entries:
                print(entry)
            return 0
        with replacing(args.manifest, force=args.force, inputs=(args.file,)) as out:
            out.writelines(f"{entry}\n".encode() for entry in entries)
    print(f"wrote {args.manifest}")
    return 0


def _algorithms(args: argparse.Namespace) -> tuple[Algorithm, ...]:
    """The algorithms that were asked for, in the order in which they are printed."""
    from minka.ggufs.hashes import ALGORITHMS, has_xxhash

    wanted = {name for name in ALGORITHM_FLAGS if getattr(args, name)}
    if args.all:
        wanted |= {"sha1", "sha256"} | ({"xxh64"} if has_xxhash() else set())
    return tuple(algorithm for algorithm in ALGORITHMS if algorithm in wanted)


def _hash_check(args: argparse.Namespace) -> int:
    from minka.ggufs.hashes import algorithms_of, hash_file, read_manifest, verify
    from minka.ggufs.read import open_gguf
    from minka.ggufs.terminal import show_progress

    manifest = read_manifest(args.check)
    known = algorithms_of(manifest)
    print("  ".join(("manifest", str(args.check), *known)))
    verdicts = set()
    with open_gguf(args.file) as source, show_progress("hashing") as progress:
        entries = hash_file(source, _algorithms(args) or known[:1], layers=not args.no_layer, progress=progress)
        for entry, verdict in verify(entries, manifest):
            print(f"{entry}  -  {verdict}")
            verdicts.add(verdict)
    failed = "Mismatch" in verdicts
    found = failed or "Ok" in verdicts
    outcome = "Failure" if failed else "Success" if found else "Manifest Missing Entry"
    print(f"\nVerification results for {args.check} - {outcome}")
    return EXIT_DIFFERENT if failed else 0 if found else EXIT_NOT_IN_MANIFEST


# -- diff, convert-endian, check, report


def _diff_arguments(parser: argparse.ArgumentParser) -> None:
    _file(parser, "left")
    _file(parser, "right", "GGUF file to compare with")
    _flag(parser, "--data", "compare the tensors' values too, dequantised")
    _flag(parser, "--json", "print JSON")


def _diff(args: argparse.Namespace) -> int:
    from minka.ggufs.diff import compare, to_json
    from minka.ggufs.read import open_gguf
    from minka.ggufs.tables import print_diff
    from minka.ggufs.terminal import draw, show_progress

    with open_gguf(args.left) as left, open_gguf(args.right) as right, show_progress("comparing") as progress:
        diff = compare(left, right, data=args.data, progress=progress)
    if args.json:
        print(json.dumps(to_json(diff)))
    else:
        draw(lambda console: print_diff(console, diff, data=args.data))
    return 0 if diff.same else EXIT_DIFFERENT


def _endian_arguments(parser: argparse.ArgumentParser) -> None:
    _file(parser)
    parser.add_argument("order", choices=("big", "little", "native"), help="the byte order to convert to")
    parser.add_argument("-o", "--output", type=Path, metavar="OUT", help="write a copy instead of replacing the file")
    _force(parser)
    _dry_run(parser)


def _endian(args: argparse.Namespace) -> int:
    from minka.ggufs.endian import HOST_ORDER, convert_endian
    from minka.ggufs.terminal import confirm, show_progress

    order: ByteOrder = HOST_ORDER if args.order == "native" else args.order
    if not convert_endian(args.file, order, dry_run=True):
        print(f"{args.file} is {order}-endian already")
        return 0
    if args.dry_run:
        print(f"{args.file} can be converted to {order}-endian")
        return 0
    if not args.output and not args.force:
        note = (
            "" if order == HOST_ORDER else f", and no {HOST_ORDER}-endian machine, such as this one, can load it then"
        )
        if not confirm(f"{args.file} is replaced by its {order}-endian form{note}"):
            return 1
    with show_progress("converting") as progress:
        convert_endian(args.file, order, output=args.output, force=args.force, progress=progress)
    print(f"wrote {args.output or args.file}")
    return 0


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="GGUF file")
    _flag(parser, "--no-data", "do not read the tensors to look for NaN and infinity")
    _flag(parser, "--json", "print JSON")


def _check(args: argparse.Namespace) -> int:
    from minka.ggufs.check import check, summary
    from minka.ggufs.read import open_gguf
    from minka.ggufs.terminal import show_progress

    report = {}
    for path in args.files:
        with open_gguf(path) as source, show_progress("checking") as progress:
            problems = check(source, data=not args.no_data, progress=progress)
            report[str(path)] = [{"where": problem.where, "what": problem.what} for problem in problems]
            if not args.json:
                print("\n".join((*map(str, problems), summary(source, problems))))
    if args.json:
        print(json.dumps(report))
    return EXIT_DIFFERENT if any(report.values()) else 0


def _report_arguments(parser: argparse.ArgumentParser) -> None:
    _file(parser, text="GGUF file, or the first shard of one")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.html", help="the page to write")
    _flag(parser, "--force", "overwrite the page")


def _report(args: argparse.Namespace) -> int:
    from minka.ggufs.report import write_report

    write_report(args.file, args.output, force=args.force)
    print(f"wrote {args.output}")
    return 0


ACTIONS = (
    Action("dump", "show the metadata and the tensors of a file", _dump_arguments, _dump),
    Action("metadata set", "set a number or bool in place", _set_arguments, _set),
    Action("metadata new", "write a copy with other metadata", _new_arguments, _new),
    Action("split", "split a file into shards", _split_arguments, _split),
    Action("merge", "join the shards of a split", _merge_arguments, _merge),
    Action("hash", "hash the tensor data, or check it against a manifest", _hash_arguments, _hash),
    Action("diff", "compare two files", _diff_arguments, _diff),
    Action("convert-endian", "change the byte order", _endian_arguments, _endian),
    Action("check", "look for what is wrong with a file", _check_arguments, _check),
    Action("report", "write an HTML page about a file", _report_arguments, _report),
)
"""All actions; one whose name has two words belongs to a group."""
