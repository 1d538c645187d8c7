"""Where a measuring tool computes: what the flags of the table say, for a model that is loaded without the engine.

Values are checked when they are read, before a model is loaded.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from minka.commands.arguments import resolve
from minka.params import HardwareParams, LoraParams

if TYPE_CHECKING:
    from minka.tools.scoring_context import Hardware

LORA = ("init_without_apply", "directory")
"""Rows of LoraParams that mean nothing to a tool."""


def hardware(args: Namespace, env: Mapping[str, str] | None = None) -> Hardware:
    """What the flags and the environment say. Raises UsageError for a device or buffer type that does not exist.

    The priority and the use of NUMA nodes are changed at once: they are the process's.
    """
    from minka.native.placement import prepare
    from minka.native.raw import Adapter
    from minka.native.threadpool import pinnings
    from minka.tools.scoring_context import Hardware

    env = os.environ if env is None else env
    params, lora = resolve(args, HardwareParams, env), resolve(args, LoraParams, env)
    pinning, batch_pinning = pinnings(params)
    adapters = tuple(Adapter(Path(name).expanduser(), scale) for name, scale in lora.files)
    return Hardware(prepare(params), pinning, batch_pinning, adapters)


def device_list() -> str:
    """The devices other than the CPU, as llama.cpp lists them."""
    from minka.native.devices import DeviceType, devices

    mib = 1024 * 1024
    lines = [
        f"  {device.name}: {device.description} ({device.total // mib} MiB, {device.free // mib} MiB free)"
        for device in devices()
        if device.type is not DeviceType.CPU
    ]
    return "\n".join(["Available devices:", *(lines or ["  (none)"])])
