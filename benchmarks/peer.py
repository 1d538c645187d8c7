"""The peer: the real llama-server that the PyPI wheel `xllamacpp` contains, with llama-server's own flags and defaults.

Run as a file by any Python that has the wheel (`pip install xllamacpp`, no build); needs nothing else, not even this
package. Listens on loopback without a key. Says at once that it starts, and again when it listens; SIGTERM ends it.
"""

import argparse
import signal
import sys
import threading
import time

DEFAULT_SLOTS = 4
"""Slots of llama-server while `--parallel` is not given; it then also turns the unified KV cache on."""


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the flags; spelling and defaults are llama-server's."""
    cli = argparse.ArgumentParser(prog="peer", description=__doc__.splitlines()[0])
    cli.add_argument("-m", "--model", required=True)
    cli.add_argument("--host", default="127.0.0.1", choices=["127.0.0.1", "localhost"])
    cli.add_argument("--port", type=int, default=8080)
    cli.add_argument("-c", "--ctx-size", type=int, default=0)
    cli.add_argument("-np", "--parallel", type=int, default=-1)
    cli.add_argument("-b", "--batch-size", type=int, default=2048)
    cli.add_argument("-ub", "--ubatch-size", type=int, default=512)
    cli.add_argument("-t", "--threads", type=int, default=-1)
    cli.add_argument("-cram", "--cache-ram", type=int, default=8192)
    cli.add_argument("-kvu", "--kv-unified", dest="kv_unified", action="store_const", const=True)
    cli.add_argument("-no-kvu", "--no-kv-unified", dest="kv_unified", action="store_const", const=False)
    cli.add_argument("--embeddings", "--embedding", action="store_true")
    return cli.parse_args(argv)


def serve(args: argparse.Namespace, began: float) -> None:
    """Load the model, listen, and return on SIGTERM or SIGINT."""
    done = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: done.set())

    import xllamacpp

    print(f"peer: imported xllamacpp after {time.monotonic() - began:.3f} s", flush=True)
    params = xllamacpp.CommonParams()
    params.model.path = args.model
    params.hostnames = [args.host]
    params.port = args.port
    params.n_ctx = args.ctx_size
    params.n_batch = args.batch_size
    params.n_ubatch = args.ubatch_size
    params.embedding = args.embeddings
    if args.embeddings:
        params.n_batch = min(params.n_batch, params.n_ubatch)  # as llama-server does
    params.cache_ram_mib = args.cache_ram
    automatic = args.parallel < 1
    params.n_parallel = DEFAULT_SLOTS if automatic else args.parallel
    params.kv_unified = automatic if args.kv_unified is None else args.kv_unified
    if args.threads > 0:
        params.cpuparams.n_threads = args.threads
        params.cpuparams_batch.n_threads = args.threads
    params.endpoint_slots = True
    params.endpoint_metrics = True
    server = xllamacpp.Server(params)
    print(f"peer: {server.listening_address} after {time.monotonic() - began:.3f} s", flush=True)
    done.wait()


def main() -> None:
    """Entry point of the file."""
    began = time.monotonic()
    args = parse(sys.argv[1:])
    print("peer: starting", flush=True)
    serve(args, began)


if __name__ == "__main__":
    main()
