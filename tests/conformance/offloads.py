"""The offload tests: Open vSwitch's suite `system-offloads-testsuite`, in an emulated machine with Linux 6.12.

The suite has the tests of offload by tc, and all of system-traffic.at with `hw-offload=true`. It needs a kernel with
openvswitch, flower and the tc actions, so the daemon runs in the lab's guest (docs/lab.md), with the machine's
programs. An executor here starts that guest and this same file inside it; each result comes out as a line of JSON.

    python3 tests/conformance/offloads.py WORK SUITE DAEMON JOBS LIMIT PYTHONPATH NUMBERS     (inside the guest)
"""

import base64
import io
import json
import os
import sys
import tarfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.dirname(HERE)]
from execute import Result  # noqa: E402
from suite import Suite, Unavailable, numbers, tool_path  # noqa: E402
from system import SystemExecutor  # noqa: E402

NAME = "system-offloads-testsuite"
SECTION = "Offload tests"
# All tests of this file run, and one of this number of the others.
OWN, ONE_OF = "system-offloads-traffic.at", 3
LIMIT_S = 600
MEMORY_MB = 2048
POLL_S = 3
WORK = "/tmp/offloads"
MODULES = ("crc32c_generic", "openvswitch", "vport-geneve", "vport-vxlan", "vport-gre", "veth", "tun", "8021q", "bonding", "dummy",
           "nf_conntrack_netlink", "nf_nat_ftp", "nf_nat_tftp", "nf_conntrack_ftp", "nf_conntrack_tftp", "nf_tables", "nft_ct",
           "nfnetlink_cttimeout", "sch_ingress", "sch_htb", "sch_hfsc", "sch_sfq", "sch_codel", "sch_fq_codel", "sch_netem", "cls_flower",
           "cls_matchall", "cls_basic", "cls_u32", "cls_fw", "cls_bpf", "act_bpf", "act_mirred", "act_vlan", "act_pedit", "act_csum",
           "act_tunnel_key", "act_ct", "act_gact", "act_police", "act_sample", "act_skbedit", "act_mpls", "psample", "vxlan", "geneve",
           "ip_gre", "ip6_gre", "ip6_tunnel", "ipip", "sit", "bareudp", "mpls_router", "mpls_iptunnel", "vrf", "nsh", "tcp_diag", "sctp")
# `modprobe` of the tests: modules are those of the guest's kernel, and stay loaded beside other tests.
MODPROBE = """#!/bin/sh
case " $* " in *" -r "*) exit 0 ;; esac
exec /sbin/modprobe -d {cache}/kernel "$@"
"""
# A program of the tests. Open vSwitch's programs warn about slow processors, and a warning fails a test.
PROGRAM = """#!/bin/sh
{before}exec {program} "$@" {after}
"""
QUIET = "-vtimeval:off -vcoverage:off -vpoll_loop:off"
# The kernel counts nine pings without Ethernet headers. Heddle counts with them.
OCTETS = ("bytes:756,", "bytes:882,")
# A setting that the tests do not know is not shown to them.
VSCTL = """#!/bin/bash
set -o pipefail
{program} "$@" | sed 's/heddle-ebpf="\\?false"\\?, //'
"""
# Before heddled starts; the database runs by then.
SETTINGS = """[ ! -S "$OVS_RUNDIR/db.sock" ] || ovs-vsctl --no-wait set Open_vSwitch . other_config:heddle-ebpf=false
"""


def chosen(tests):
    """The tests of a usual run: those of offload itself, and one of three of the others."""
    own = [test for test in tests if test.file == OWN]
    others = [test for test in tests if test.file != OWN]
    return own + others[::ONE_OF]


def kernel(later=False):
    """The release of the guest's kernel; Unavailable if the lab cannot be had. later: with a later Open vSwitch."""
    from lab.guest import CACHE, obtain
    if reason := obtain(*["ovs-later"] * later):
        raise Unavailable(f"no emulated machine: {reason}")
    with open(f"{CACHE}/kernel/.release") as file:
        return file.read().strip()


def programs():
    """The directory of the later Open vSwitch's daemon and clients."""
    from lab.guest import CACHE
    return f"{CACHE}/ovs-later/run"


def daemon():
    """The later Open vSwitch's daemon."""
    return f"{programs()}/ovs-vswitchd"


class GuestExecutor:
    """Runs tests with a daemon in an emulated machine; keeps logs of those that fail in `keep`."""

    def __init__(self, suite, daemon, keep, limit, python, clients=""):
        """clients: directory of the clients that are used before this machine's."""
        self.suite, self.daemon, self.keep, self.limit, self.python = suite, os.path.realpath(daemon), keep, limit, python
        self.clients = clients

    def run(self, tests, jobs, tell):
        """Results of `tests` in the order in which they end; `tell` is called with each."""
        os.environ["HEDDLED"] = self.daemon  # the guest shows its directory
        from lab.guest import CACHE, Guest
        from lab.shell import Trace
        release, by_number, results = kernel(), {test.number: test for test in tests}, []
        guest = Guest(Trace(), "offloads", [], cpus=2, memory=MEMORY_MB, host=True)
        script = self.suite.script
        if not is_reference(self.daemon):
            with open(script, errors="surrogateescape") as file:
                text = file.read().replace(*OCTETS)
            script = os.path.join(os.path.dirname(script), f"heddle-{os.path.basename(script)}")
            with open(script, "w", errors="surrogateescape") as file:
                file.write(text)
            os.chmod(script, 0o755)
        try:
            guest.start(timeout=300)
            guest.run(f"/sbin/modprobe -d {CACHE}/kernel -S {release} -a {' '.join(MODULES)}; mkdir -p {WORK}", timeout=600, check=False)
            command = (f"python3 {HERE}/offloads.py {WORK} {script} {self.daemon} {jobs} {self.limit} {self.python} "
                       f"{','.join(map(str, sorted(by_number)))}")
            guest.run(f"PATH={self.clients}:$PATH PYTHONDONTWRITEBYTECODE=1 LAB_CACHE={CACHE} setsid {command} >{WORK}/out 2>{WORK}/err </dev/null & echo", timeout=120)
            seen, text = 0, ""
            while len(results) < len(tests):
                time.sleep(POLL_S)
                piece = guest.run(f"tail -c +{seen + 1} {WORK}/out", timeout=600)
                seen += len(piece.encode())
                text += piece
                *lines, text = text.split("\n")
                for line in lines:
                    number, verdict, detail, seconds, logs = json.loads(line)
                    result = Result(by_number[number], verdict, detail, seconds, self.preserve(number, logs))
                    results.append(result)
                    tell(result)
                if not lines and not guest.run("pgrep -f '[o]ffloads.py' || true", timeout=600).strip():
                    raise Unavailable(f"the run in the machine ended early: {guest.run(f'tail -c 2000 {WORK}/err', timeout=60)}")
        finally:
            guest.close()
        return results

    def preserve(self, number, logs):
        """Unpacks the logs of a failed test."""
        if not logs:
            return None
        to = os.path.join(self.keep, str(number))
        os.makedirs(to, exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(base64.b64decode(logs))) as tar:
            for member in filter(tarfile.TarInfo.isfile, tar):
                with open(os.path.join(to, os.path.basename(member.name)), "wb") as file:
                    file.write(tar.extractfile(member).read())
        return to


def is_reference(daemon):
    """Whether it is Open vSwitch's own."""
    return os.path.basename(daemon).startswith("ovs-vswitchd")


def packed(directory):
    """The files of a directory as a tar file, in base64."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name)
            if os.path.getsize(path) < 1 << 20:
                tar.add(path, name)
    return base64.b64encode(buffer.getvalue()).decode()


def inside(work, script, daemon, jobs, limit, python, wanted):
    """Runs the wanted tests in this machine, and prints a line for each."""
    tests = os.path.dirname(script)
    suite = Suite(os.path.dirname(tests), os.path.basename(script))
    tools = tool_path(os.path.join(work, "bin"), daemon, suite, built=os.path.exists(os.path.join(suite.directory, "ovsdb", "ovsdb-server")))
    own = is_reference(daemon)
    database, vsctl = (os.path.realpath(os.path.join(tools, name)) for name in ("ovsdb-server", "ovs-vsctl"))
    for name, text in (("modprobe", MODPROBE.format(cache=os.environ["LAB_CACHE"])),
                       *([] if own else [("ovs-vsctl", VSCTL.format(program=vsctl))]),
                       ("ovsdb-server", PROGRAM.format(before="", program=database, after=QUIET)),
                       ("ovs-vswitchd", PROGRAM.format(before="" if own else SETTINGS, program=daemon, after=QUIET if own else ""))):
        path = os.path.join(tools, name)
        if os.path.lexists(path):
            os.unlink(path)
        with open(path, "w") as file:
            file.write(text)
        os.chmod(path, 0o755)
    chosen_numbers = numbers(wanted)
    executor = SystemExecutor(suite, tools, os.path.join(work, "run"), os.path.join(work, "logs"), int(limit), python=python)

    def report(result):
        logs = packed(result.log) if result.log else None
        print(json.dumps([result.test.number, result.verdict, result.detail, result.seconds, logs]), flush=True)
    executor.run([test for test in suite.tests if test.number in chosen_numbers], int(jobs), report)


if __name__ == "__main__":
    inside(*sys.argv[1:])
