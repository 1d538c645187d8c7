"""Ctrl-C while a model loads: noted by a handler that any number of presses cannot stop."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

from minka.terminal.loading import _interrupts

STORM = textwrap.dedent("""
    import os, signal, subprocess, sys
    from minka.terminal.loading import _interrupts

    press = f"import os\\nfor _ in range(100_000): os.kill({os.getpid()}, {int(signal.SIGINT)})"
    with _interrupts() as check:
        presses = subprocess.Popen([sys.executable, "-c", press])
        presses.wait()
        try:
            check()
        except KeyboardInterrupt:
            print("raised")
""")


def test_a_press_is_raised_by_the_check_only() -> None:
    before = signal.getsignal(signal.SIGINT)
    with _interrupts() as check:
        check()
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            check()
    assert signal.getsignal(signal.SIGINT) is before


def test_presses_that_interrupt_each_other_do_no_harm() -> None:
    result = subprocess.run([sys.executable, "-c", STORM], capture_output=True, text=True, timeout=120, check=False)
    assert (result.stdout, result.returncode) == ("raised\n", 0), result.stderr
