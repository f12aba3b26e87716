"""Checks that run in an emulated machine with Open vSwitch's kernel datapath first, then with Heddle.

A script of tests/lab/guests names a directory of checks and calls main(). A check that passes with Open vSwitch has
to pass with Heddle. A check prints figures as lines `figure NAME VALUE UNIT`; the summary shows those of both
switches side by side. `--switch ovs-kernel` or `--switch heddle` runs one of them alone, and parts of names choose
checks.
"""

import os
import re
import signal
import sys

from . import ROOT, daemon_path
from .guest import CACHE, Guest, obtain
from .runner import logs
from .shell import CommandError, Trace

SWITCHES = ("ovs-kernel", "heddle")
TREE = f"{CACHE}/ovs-kernel"
TOPIC_LIMIT_S = 3600
# A scenario's line of the runner.
VERDICT = re.compile(r"^(ok|skip|FAIL) +(\w+):(\w+) \(")
FIGURE = re.compile(r"^figure (.+) (\S+) (\S+)$", re.M)


def arguments(checks):
    """The chosen switches, the parts of names, and whether downloads are allowed."""
    words, switches, parts, fetch = sys.argv[1:], SWITCHES, [], os.environ.get("LAB_FETCH") != "0"
    while words:
        word = words.pop(0)
        if word in ("-h", "--help"):
            import __main__
            print(f"{__main__.__doc__.strip()}\n\n    {sys.argv[0]} [--list] [--no-fetch] [--switch ovs-kernel|heddle] [PART_OF_A_NAME ...]")
            sys.exit()
        if word == "--list":
            print("\n".join(f"{topic}:{name}" for topic, name in known(*checks)))
            sys.exit()
        if word.startswith("--switch"):
            name = word.partition("=")[2] or (words.pop(0) if words else "")
            if name not in SWITCHES:
                sys.exit(f"--switch {name}: ovs-kernel and heddle are known")
            switches = (name,)
        elif word == "--no-fetch":
            fetch = False
        elif not word.startswith("-"):
            parts.append(word.rpartition(":")[2])
    return switches, parts, fetch


def known(directory, topics):
    """(topic, name) of every check."""
    for topic in topics:
        with open(f"{ROOT}/tests/lab/{directory}/{topic}.py") as file:
            for name in re.findall(r"^def scenario_(\w+)\(", file.read(), re.M):
                yield topic, name


class Machine:
    """An emulated machine with modules of its kernel, for the checks with one switch."""

    def __init__(self, switch, directory, modules, prepare="true"):
        self.trace, self.switch, self.directory = Trace(), switch, directory
        self.figures = {}
        self.guest = Guest(self.trace, directory, [], cpus=2, memory=1536, host=True)
        self.guest.start(timeout=180)
        with open(f"{CACHE}/kernel/.release") as file:
            release = file.read().strip()
        # One call for all modules: each start of a program from the shared root takes its time.
        self.guest.run(f"modprobe -d {CACHE}/kernel -S {release} -a {' '.join(modules)}; {prepare}", timeout=900)

    def check(self, topic, names):
        """Runs checks of one topic, prints their lines, and returns {name: verdict}."""
        daemon = f"{TREE}/run/ovs-vswitchd" if self.switch == "ovs-kernel" else os.path.realpath(daemon_path())
        # Clients and schema are those of the reference, for both switches.
        command = (f"PATH={TREE}/run:$PATH OVS_PKGDATADIR={TREE}/usr/share/openvswitch CARGO_TARGET_DIR=/tmp/target "
                   f"LAB_CACHE={CACHE} HEDDLED={daemon} python3 {ROOT}/tests/lab/{self.directory}/{topic}.py {' '.join(names)}")
        try:
            out = self.guest.run(command, timeout=TOPIC_LIMIT_S, check=False)
        except CommandError as exc:
            out = f"{exc}\n"
        verdicts = {match.group(3): match.group(1) for match in map(VERDICT.match, out.splitlines()) if match}
        for name in names:
            if name not in verdicts:  # the machine or the script died
                verdicts[name] = "FAIL"
                out += f"FAIL {topic}:{name} (0 s) no result\n"
        print("".join(f"{line}\n" for line in out.splitlines() if not line.startswith(f"{topic}: ")), end="", flush=True)
        self.figures.update({name: f"{value} {unit}" for name, value, unit in FIGURE.findall(out)})
        self.keep(topic, [name for name, verdict in verdicts.items() if verdict == "FAIL"])
        return verdicts

    def keep(self, topic, names):
        """Copies the traces and the daemon's logs of failed checks to this machine."""
        for name in names:
            here = f"{logs()}/{self.directory}-{self.switch}/{topic}-{name}"
            os.makedirs(here, exist_ok=True)
            for file in ("trace.txt", "ovs-vswitchd.log"):
                if not self.guest.alive():
                    return
                text = self.guest.run(f"cat /tmp/target/system-logs/{topic}/{name}/{file}", timeout=60, check=False)
                with open(f"{here}/{file}", "w") as out:
                    out.write(text)


def run(switch, checks, topics, *machine):
    """({(topic, name): verdict}, {figure: value}) of these checks with a switch."""
    print(f"{machine[0]}: with {switch}", flush=True)
    machine, found = Machine(switch, *machine), {}
    try:
        for topic in topics:
            if names := [name for where, name in checks if where == topic]:
                found.update({(topic, name): verdict for name, verdict in machine.check(topic, names).items()})
    finally:
        machine.guest.close()
    return found, machine.figures


def summary(found, checks):
    """Prints a line for each check and each figure, and returns how many passed, failed and were skipped: with Heddle,
    if both ran."""
    counts = {"ok": 0, "FAIL": 0, "skip": 0}
    print(f"\n{'check':60} {' '.join(f'{switch:10}' for switch in found)}")
    for check in checks:
        verdicts = [found[switch][0].get(check, "") for switch in found]
        print(f"{':'.join(check):60} {' '.join(f'{verdict:10}' for verdict in verdicts)}".rstrip())
        # A check that fails with the reference is itself at fault.
        counts["FAIL" if "FAIL" in verdicts else verdicts[-1]] += 1
    if names := list(dict.fromkeys(name for _, figures in found.values() for name in figures)):
        print(f"\n{'figure':60} {' '.join(f'{switch:20}' for switch in found)}")
        for name in names:
            print(f"{name:60} {' '.join(f'{figures.get(name, chr(45)):20}' for _, figures in found.values())}".rstrip())
    return counts


def main(title, directory, topics, modules, prepare="true", parts_of_lab=("ovs-kernel",)):
    """Runs the checks of tests/lab/DIRECTORY, whose scripts are the topics. prepare: commands in the machine."""
    switches, parts, fetch = arguments((directory, topics))
    names = {name for _, name in known(directory, topics)}
    checks = [(topic, name) for topic, name in known(directory, topics)
              if not parts or any(part == topic or (part == name if part in names else part in name) for part in parts)]
    if not checks:
        sys.exit(f"{title}: no check is called {' or '.join(parts)} (--list names them)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(f"{title}: ended by a signal"))  # the machine ends, too
    if os.geteuid() != 0:
        sys.exit("emulated machines share this machine's files and need root")
    if "heddle" in switches and not os.access(daemon_path(), os.X_OK):
        sys.exit(f"no daemon at {daemon_path()}: build it (cargo build --release) or set HEDDLED")
    if reason := obtain(*parts_of_lab, fetch=fetch):
        print(f"skip {title}:all {reason}\n{title}: 0 passed, 0 failed, {len(checks)} skipped")
        return
    counts = summary({switch: run(switch, checks, topics, directory, modules, prepare) for switch in switches}, checks)
    print(f"{title}: {counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    sys.exit(1 if counts["FAIL"] else 0)
