"""Running commands with a time limit and a trace that is shown on failure only."""

import os
import subprocess
import time


class CommandError(AssertionError):
    """A command ended with an unexpected status."""


# The limit of every wait, in seconds. It is long, for machines that stand still for seconds; only a failure
# takes that long.
PATIENCE = 60


class Trace:
    """Events of a scenario, in order: commands, their output and free notes."""

    LIMIT = 4000  # characters of one command's output that are kept

    def __init__(self):
        self.start = time.monotonic()
        self.lines = []
        self.env = dict(os.environ, LC_ALL="C")

    def note(self, text):
        self.lines.append(f"{time.monotonic() - self.start:8.3f} {text}")

    def text(self):
        return "\n".join(self.lines) + "\n"

    def run(self, *argv, check=True, timeout=PATIENCE, stdin=None, merge=True, env=None, quiet=False):
        """Runs argv, returns its output as text (stderr merged unless merge=False).

        check: True wants status 0, False takes any, an int wants that status.
        """
        argv = [str(arg) for arg in argv]
        began = time.monotonic()
        proc = subprocess.Popen(
            argv, stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            env=dict(self.env, **(env or {})), text=True, errors="replace")
        try:
            out, err = proc.communicate(stdin, timeout=timeout)
        except BaseException as exc:
            proc.kill()
            out, _ = proc.communicate()
            self.note(f"$ {' '.join(argv)}\n{out}\n  gave up: {exc!r}")
            if isinstance(exc, subprocess.TimeoutExpired):
                raise CommandError(f"no end after {timeout} s: {' '.join(argv)}") from None
            raise
        took = time.monotonic() - began
        if not quiet or proc.returncode:
            shown = out if len(out) <= self.LIMIT else out[:self.LIMIT] + f"… ({len(out)} characters)"
            extra = f"\n[stderr] {err}" if err else ""
            self.note(f"$ {' '.join(argv)}   [{proc.returncode}, {took:.2f} s]\n{shown}{extra}".rstrip())
        want = 0 if check is True else check
        if check is not False and proc.returncode != want:
            raise CommandError(f"status {proc.returncode} instead of {want}: {' '.join(argv)}\n{out}{err or ''}")
        return out


def wait_for(what, probe, timeout=PATIENCE, interval=0.05):
    """Polls probe() until it returns something true, and returns that."""
    end = time.monotonic() + timeout
    while True:
        value = probe()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"not within {timeout:g} s: {what} (last: {value!r})")
        time.sleep(interval)
