"""Runs the scenarios of one script, each in a fresh lab with a time limit.

A script defines functions named `scenario_*(lab)` and ends with `main()`:

    python3 tests/system/test_x.py [PART_OF_A_NAME ...]

On failure the trace is printed and, with the logs, kept under
target/system-logs/.  The last line counts: `N passed, N failed, N skipped`.
"""

import os
import shutil
import signal
import sys
import time
import traceback

from . import ROOT, daemon_path
from .net import Net
from .shell import Trace
from .switch import Switch


DEFAULT_LIMIT_S = 240


class Skip(Exception):
    """This machine cannot run the scenario; the text is the reason."""


class Lab:
    """The argument of a scenario: a trace, namespaces, and switches that are ended after it."""

    def __init__(self, name):
        self.name = name
        self.trace = Trace()
        self.net = Net(self.trace)
        self.switches = []
        self.cleanups = []

    def switch(self, *args, netns=True, start=True, binary=None, system=False):
        """A switch in a namespace of its own (`sw`), started unless start=False.

        system: with datapaths of type system, which are the kernel's if the daemon is Open vSwitch's.
        """
        ns = self.net.namespace(f"sw{len(self.switches) or ''}") if netns else None
        switch = Switch(self.trace, binary=binary, netns=ns, args=(*([] if system else ["--disable-system"]), *args))
        self.switches.append(switch)
        if start:
            switch.start()
        return switch

    def bridge(self, switch, name="br0", *settings):
        switch.vsctl("add-br", name, "--", "set", "bridge", name, "datapath_type=netdev", *settings)

    def internal_pod(self, switch, pod, address, bridge="br0", dev=None, column=(), ipv6=False, mac=None):
        """A namespace whose device is an internal port of the bridge."""
        dev = dev or f"{pod}0"
        switch.vsctl("add-port", bridge, dev, *column, "--", "set", "interface", dev, "type=internal")
        ns = self.net.namespace(pod, ipv6=ipv6)
        self.net.move(dev, switch.netns, ns)
        self.net.address(ns, dev, address, mac)
        return ns

    def veth_pod(self, switch, pod, address=None, bridge="br0", column=(), mac=None, dev="eth0", ipv6=False,
                 offload=True):
        """A namespace whose device is a veth; the other end is a system port named after the pod."""
        ns = self.net.namespace(pod, ipv6=ipv6)
        self.net.veth(switch.netns, f"v{pod}", ns, dev)
        if mac:
            self.net.ip(ns, "link", "set", dev, "address", mac)
        if not offload or (switch.is_reference and "--tso" not in switch.args):
            # OVS without userspace-tso neither completes partial checksums nor takes segments beyond the MTU
            # from a veth: its documentation requires this.
            self.net.run(ns, "ethtool", "-K", dev, "tx", "off", check=False)
        switch.vsctl("add-port", bridge, f"v{pod}", *column)
        if address:
            self.net.address(ns, dev, address)
        return ns

    def close(self, keep):
        for cleanup in reversed(self.cleanups):
            try:
                cleanup()
            except Exception as exc:  # the rest still has to be cleaned up
                self.trace.note(f"cleanup: {exc!r}")
        for switch in self.switches:
            try:
                switch.close(keep)
            except Exception as exc:
                self.trace.note(f"cleanup: {exc!r}")
        self.net.close()


def timed_out(_signum, _frame):
    raise TimeoutError("the scenario's time is over")


def crashed(lab):
    """Evidence that a daemon has crashed, or None."""
    for switch in lab.switches:
        if switch.pid and not switch.alive():
            return "the daemon died"
        if " panicked at " in switch.log():
            return "the daemon's log tells of a panic"
    return None


def run_one(script, name, function):
    """Returns 'ok', 'skip' or 'FAIL'."""
    keep = os.path.join(logs(), script, name)
    shutil.rmtree(keep, ignore_errors=True)
    lab = Lab(name)
    verdict, detail = "ok", ""
    began = time.monotonic()
    signal.signal(signal.SIGALRM, timed_out)
    signal.alarm(limit_of(function))
    try:
        function(lab)
        if crash := crashed(lab):
            raise AssertionError(crash)
    except Skip as exc:
        verdict, detail = "skip", str(exc)
    except KeyboardInterrupt:
        lab.close(None)
        raise
    except BaseException as exc:
        verdict, detail = "FAIL", f"{type(exc).__name__}: {exc}"
        lab.trace.note(traceback.format_exc())
        try:
            lab.trace.note(crashed(lab) or "no daemon crashed")
        except Exception as why:  # a daemon that hangs, for example: the scenario has failed anyway
            lab.trace.note(f"whether a daemon crashed is not known: {why!r}")
    finally:
        signal.alarm(0)
    failed = verdict == "FAIL"
    signal.alarm(120)
    try:
        lab.close(keep if failed else None)
    finally:
        signal.alarm(0)
    print(f"{verdict:4} {script}:{name} ({time.monotonic() - began:.1f} s) {detail.splitlines()[0] if detail else ''}",
          flush=True)
    if failed:
        os.makedirs(keep, exist_ok=True)
        with open(os.path.join(keep, "trace.txt"), "w") as file:
            file.write(lab.trace.text())
        print("".join(f"     | {line}\n" for line in lab.trace.text().splitlines()[-60:]), end="")
        print(f"     logs and the whole trace: {os.path.relpath(keep, ROOT)}", flush=True)
    return verdict


def logs():
    """Directory for the logs of failed scenarios."""
    return os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(ROOT, "target"), "system-logs")


def limit_of(function):
    """Seconds that a scenario may take."""
    return getattr(function, "limit", DEFAULT_LIMIT_S)


def limit(seconds):
    """Decorator: another time limit than the usual one."""
    def mark(function):
        function.limit = seconds
        return function
    return mark


def main():
    """Runs the calling script's scenarios; exits non-zero if any failed."""
    import __main__
    script = os.path.splitext(os.path.basename(__main__.__file__))[0]
    scenarios = [(name[len("scenario_"):], value) for name, value in vars(__main__).items()
                 if name.startswith("scenario_")]
    wanted = [arg for arg in sys.argv[1:] if not arg.startswith("-")]
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(f"{__main__.__doc__.strip()}\n\n    {sys.argv[0]} [--list] [PART_OF_A_NAME ...]")
        return
    if "--list" in sys.argv[1:]:
        for name, function in scenarios:
            print(name, *([limit_of(function)] if "--limits" in sys.argv[1:] else []))
        return
    if os.geteuid() != 0:
        sys.exit("system tests make network namespaces and need root")
    if not os.access(daemon_path(), os.X_OK):
        sys.exit(f"no daemon at {daemon_path()}: build it (cargo build --release) or set HEDDLED")
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
    counts = {"ok": 0, "FAIL": 0, "skip": 0}
    names = {name for name, _ in scenarios}
    for name, function in scenarios:
        # A whole name means that scenario alone.
        if not wanted or any(part == name if part in names else part in name for part in wanted):
            counts[run_one(script, name, function)] += 1
    if wanted and not any(counts.values()):
        sys.exit(f"{script}: no scenario is called {' or '.join(wanted)} (--list names them)")
    print(f"{script}: {counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    sys.exit(1 if counts["FAIL"] else 0)
