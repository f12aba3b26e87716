#!/usr/bin/env python3
"""Parity with Open vSwitch's kernel datapath: the checks of tests/lab/parity, in an emulated machine.

They run with Open vSwitch's datapath of Linux 6.12 first, then with Heddle: a check that passes there has to pass
with Heddle. `--switch ovs-kernel` or `--switch heddle` runs one of them alone, and parts of names choose checks.
"""

import os
import re
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab import ROOT, daemon_path
from lab.guest import CACHE, Guest, obtain
from lab.runner import logs
from lab.shell import CommandError, Trace

TOPICS = ("marks", "fragments", "tunnels", "connections", "sampling")
SWITCHES = ("ovs-kernel", "heddle")
MODULES = ("crc32c_generic", "openvswitch", "vport-geneve", "vport-vxlan", "vport-gre", "veth", "tun", "nf_conntrack_netlink",
           "nf_tables", "nft_ct", "sch_ingress", "cls_bpf", "act_sample", "psample", "cls_fw")
TREE = f"{CACHE}/ovs-kernel"
TOPIC_LIMIT_S = 1500
# A scenario's line of the runner.
VERDICT = re.compile(r"^(ok|skip|FAIL) +(\w+):(\w+) \(")


def arguments():
    """The chosen switches, the parts of names, and whether downloads are allowed."""
    words, switches, parts, fetch = sys.argv[1:], SWITCHES, [], os.environ.get("LAB_FETCH") != "0"
    while words:
        word = words.pop(0)
        if word in ("-h", "--help"):
            print(f"{__doc__.strip()}\n\n    {sys.argv[0]} [--list] [--no-fetch] [--switch ovs-kernel|heddle] [PART_OF_A_NAME ...]")
            sys.exit()
        if word == "--list":
            print("\n".join(f"{topic}:{name}" for topic, name in known()))
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


def known():
    """(topic, name) of every check."""
    for topic in TOPICS:
        with open(f"{ROOT}/tests/lab/parity/{topic}.py") as file:
            for name in re.findall(r"^def scenario_(\w+)\(", file.read(), re.M):
                yield topic, name


class Machine:
    """An emulated machine with the modules, for the checks with one switch."""

    def __init__(self, switch):
        self.trace, self.switch = Trace(), switch
        self.guest = Guest(self.trace, "parity", [], cpus=2, memory=1536, host=True)
        self.guest.start(timeout=180)
        with open(f"{CACHE}/kernel/.release") as file:
            release = file.read().strip()
        self.guest.run("; ".join(f"modprobe -d {CACHE}/kernel -S {release} {module}" for module in MODULES), timeout=120)

    def check(self, topic, names):
        """Runs checks of one topic, prints their lines, and returns {name: verdict}."""
        daemon = f"{TREE}/run/ovs-vswitchd" if self.switch == "ovs-kernel" else os.path.realpath(daemon_path())
        # Clients and schema are those of the reference, for both switches.
        command = (f"PATH={TREE}/run:$PATH OVS_PKGDATADIR={TREE}/usr/share/openvswitch CARGO_TARGET_DIR=/tmp/target "
                   f"HEDDLED={daemon} python3 {ROOT}/tests/lab/parity/{topic}.py {' '.join(names)}")
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
        self.keep(topic, [name for name, verdict in verdicts.items() if verdict == "FAIL"])
        return verdicts

    def keep(self, topic, names):
        """Copies the traces and the daemon's logs of failed checks to this machine."""
        for name in names:
            here = f"{logs()}/parity-{self.switch}/{topic}-{name}"
            os.makedirs(here, exist_ok=True)
            for file in ("trace.txt", "ovs-vswitchd.log"):
                if not self.guest.alive():
                    return
                text = self.guest.run(f"cat /tmp/target/system-logs/{topic}/{name}/{file}", timeout=60, check=False)
                with open(f"{here}/{file}", "w") as out:
                    out.write(text)


def run(switch, checks):
    """{(topic, name): verdict} of these checks with a switch."""
    print(f"parity: with {switch}", flush=True)
    machine, found = Machine(switch), {}
    try:
        for topic in TOPICS:
            if names := [name for where, name in checks if where == topic]:
                found.update({(topic, name): verdict for name, verdict in machine.check(topic, names).items()})
    finally:
        machine.guest.close()
    return found


def summary(found, checks):
    """Prints a line for each check, and returns how many passed, failed and were skipped: with Heddle, if both ran."""
    counts = {"ok": 0, "FAIL": 0, "skip": 0}
    print(f"\n{'check':60} {' '.join(f'{switch:10}' for switch in found)}")
    for check in checks:
        verdicts = [found[switch].get(check, "") for switch in found]
        print(f"{':'.join(check):60} {' '.join(f'{verdict:10}' for verdict in verdicts)}".rstrip())
        # A check that fails with the reference is itself at fault.
        counts["FAIL" if "FAIL" in verdicts else verdicts[-1]] += 1
    return counts


def main():
    switches, parts, fetch = arguments()
    checks = [(topic, name) for topic, name in known() if not parts or any(part == topic or part in name for part in parts)]
    if not checks:
        sys.exit(f"parity: no check is called {' or '.join(parts)} (--list names them)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("parity: ended by a signal"))  # the machine ends, too
    if os.geteuid() != 0:
        sys.exit("emulated machines share this machine's files and need root")
    if "heddle" in switches and not os.access(daemon_path(), os.X_OK):
        sys.exit(f"no daemon at {daemon_path()}: build it (cargo build --release) or set HEDDLED")
    if reason := obtain("ovs-kernel", fetch=fetch):
        print(f"skip parity:all {reason}\nparity: 0 passed, 0 failed, {len(checks)} skipped")
        return
    counts = summary({switch: run(switch, checks) for switch in switches}, checks)
    print(f"parity: {counts['ok']} passed, {counts['FAIL']} failed, {counts['skip']} skipped")
    sys.exit(1 if counts["FAIL"] else 0)


if __name__ == "__main__":
    main()
