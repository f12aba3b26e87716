"""The system tests: Open vSwitch's suite `system-userspace-testsuite`, with real devices, stacks and programs.

Each test runs in namespaces of its own (network, mounts, processes). So tests run side by side, nothing of
the machine is touched, and a test's leftovers go with its namespaces. The same tests are run with Debian's
ovs-vswitchd, once per machine. A test that fails or skips there, too, is no evidence about heddled (this
kernel may lack devices).
"""

import collections
import os
import subprocess
import sys

import report
from execute import Executor
from suite import PYTHON, Unavailable

NAME = "system-userspace-testsuite"
# The same tests with ports of type afxdp, and some of such ports alone. Debian's daemon has no such ports.
AFXDP = "system-afxdp-testsuite"
SECTION = "System tests"
REFERENCE = "/usr/lib/openvswitch-switch/ovs-vswitchd"
# The library of the suite's TFTP server, which Debian does not package.
TFTP = "tftpy==0.8.2"

# Tests that concern each other, by their titles: the first that fits.
GROUPS = (
    ("offload by tc", ("offloads",)),
    ("ct with FTP and TFTP", ("FTP",)),
    ("ct with fragments", ("fragment", "Fragment", "IPv4 frag", "IPv6 frag")),
    ("ct with NAT", ("conntrack - SNAT", "conntrack - DNAT", "conntrack - all-zero", "conntrack - more", "NAT")),
    ("ct, other", ("conntrack",)),
    ("tunnels", ("over", "tunnel", "gre", "GRE", "erspan", "VXLAN", "vxlan", "Geneve", "geneve", "ptap", "layer3")),
    ("MPLS", ("mpls", "MPLS")),
    ("NSH", ("nsh", "NSH")),
    ("datapath", ("datapath", "truncate")),
)
OTHER = "other"

HEAD = """{heading}

Open vSwitch's `{name}` (version {version}), beside {whose} `ovs-vswitchd`.
Kernel: {kernel}. Written by `{command}`.
"""


class SystemExecutor(Executor):
    """Runs system tests, each in namespaces of its own."""

    def __init__(self, *args, python):
        super().__init__(*args)
        self.python = python

    def command(self, directory, test):
        script = super().command(directory, test)
        prepare = ("mkdir -p /run/netns && mount -t tmpfs none /run/netns && ip link set lo up && "
                   'ulimit -c 0 && exec "$@"')
        return ["unshare", "-n", "-m", "-p", "--fork", "--mount-proc", "--kill-child",
                "env", f"PYTHONPATH={self.python}", "bash", "-c", prepare, "bash", *script]

    def configure(self, directory):
        super().configure(directory)
        settings = os.path.join(directory, "atlocal")
        with open(settings) as file:
            lines = [f"PYTHON3={PYTHON}\n" if line.startswith("PYTHON3=") else line for line in file]
        os.unlink(settings)
        with open(settings, "w") as file:
            file.writelines(lines)


def python_path(root):
    """The Python path of the suite's TFTP server; fetches that if need be."""
    home = os.path.join(root, "target", "conformance", "python")
    if not os.path.isdir(os.path.join(home, "tftpy")):
        done = subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", home, TFTP],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
        if done.returncode:
            print(f"no {TFTP}, tests of TFTP will be skipped: {done.stderr.strip()[-300:]}", flush=True)
    return home


class Reference:
    """Results of Debian's daemon on this machine: verdicts by tests' keys, kept until the suite or the kernel
    changes."""

    def __init__(self, root, suite, later=False, guest=None, daemon=None):
        """guest: the kernel's release of the emulated machine that the tests run in; daemon: of a later version."""
        self.guest = guest
        self.built = (daemon or os.path.join(suite.directory, "vswitchd", "ovs-vswitchd")) if later else None
        self.path = os.path.join(root, "target", "conformance", f"reference-{suite.version}-{f'offloads-{guest}' if guest else os.uname().release}.txt")
        self.verdicts = {}
        if os.path.exists(self.path):
            with open(self.path) as file:
                for line in file.read().splitlines():
                    verdict, file_name, title = line.split("\t", 2)
                    self.verdicts[(file_name, title)] = verdict

    def missing(self, tests):
        return [t for t in tests if t.key not in self.verdicts]

    def add(self, results):
        self.verdicts.update((r.test.key, r.verdict) for r in results)
        with open(self.path, "w") as file:
            file.writelines(f"{verdict}\t{name}\t{title}\n" for (name, title), verdict in sorted(self.verdicts.items()))

    def daemon(self):
        if self.built:
            return self.built
        if not os.access(REFERENCE, os.X_OK):
            raise Unavailable(f"{REFERENCE} is missing: run scripts/setup system")
        return REFERENCE


def group(test):
    for name, words in GROUPS:
        if any(word in test.title for word in words):
            return name
    return OTHER


def rows(tests, reference, results):
    """Lines of a Markdown table by group; results None: of Open vSwitch alone."""
    verdicts = reference.verdicts if results is None else {r.test.key: r.verdict for r in results}
    counts = collections.defaultdict(collections.Counter)
    for test in tests:
        if test.key not in verdicts:
            continue
        theirs, ours = reference.verdicts.get(test.key) == "passed", verdicts[test.key] == "passed"
        for name in (group(test), "**all**"):
            counts[name].update({"tests": 1, "theirs": theirs, "both": theirs and ours, "ours": ours})
    yield "| group | tests | Open vSwitch passes | of these, heddled | share | heddled in all |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |"
    for name in [*(n for n, _ in GROUPS), OTHER, "**all**"]:
        if n := counts.get(name):
            share = f"{100 * n['both'] // n['theirs']} %" if n["theirs"] else "–"
            yield f"| {name} | {n['tests']} | {n['theirs']} | {n['both']} | {share} | {n['ours']} |"


def write(path, suite, tests, reference, results, lists, section=SECTION, name=NAME, option="--system"):
    """Writes the report of a whole run into its part of the page."""
    later = suite.version if reference.built else None
    part = report.heading(section, suite.version)
    lines = [HEAD.format(heading=part, name=name, kernel=reference.guest or os.uname().release, version=suite.version,
                         whose="its own" if later else "Debian's own",
                         command=report.command(later, option)), *rows(tests, reference, results), ""]
    lost = sorted(r.test.title for r in results
                  if r.verdict != "passed" and reference.verdicts.get(r.test.key) == "passed")
    if lost:
        lines += ["Open vSwitch passes these, and `heddled` does not:", "", "| test | why |", "| --- | --- |",
                  *(f"| {title} | {lists.system_reason(title)} |" for title in lost), ""]
    report.put(path, part, lines)
