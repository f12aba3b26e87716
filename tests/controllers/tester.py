"""os-ken's switch tester on a pair of switches: its environment and its report.

    target switch (under test)   1 2 3        the controller runs beside the second switch
                                 | | |        (os-ken calls the switch under test "target",
    tester switch (the reference) 1 2 3        the one that sends and receives "tester")

The two are joined by three veth pairs between two namespaces, and by a fourth, with addresses, for the controller's connection.
The second switch is always Open vSwitch, so that only the switch under test differs between two runs.
"""

import os
import re
import signal
import subprocess

from lab import REFERENCE
from lab.net import Net
from lab.shell import Trace, wait_for
from lab.switch import Switch

PORT = 6653
CONTROLLER = "192.0.2.1"
TARGET_ID, TESTER_ID = "0000000000000001", "0000000000000002"


class Pair:
    """The switch under test and its counterpart, joined and waiting for the controller."""

    def __init__(self, binary, version, stem):
        self.trace = Trace()
        self.net = Net(self.trace)
        self.net.stem += stem
        self.switches = []
        self.version = version
        try:
            target, tester = self.net.namespace("target"), self.net.namespace("tester")
            for i in (1, 2, 3):
                self.net.veth(target, f"a{i}", tester, f"b{i}")
            self.net.veth(target, "ctl", tester, "ctl")
            self.net.address(tester, "ctl", f"{CONTROLLER}/30")
            self.net.address(target, "ctl", "192.0.2.2/30")
            self.namespace = tester
            self.add(binary, target, TARGET_ID, "a", CONTROLLER, version)
            self.add(REFERENCE, tester, TESTER_ID, "b", "127.0.0.1", "OpenFlow13")
        except BaseException:
            self.close()
            raise

    def add(self, binary, namespace, datapath_id, devices, controller, version):
        switch = Switch(self.trace, binary=binary, netns=namespace, args=["--disable-system"])
        self.switches.append(switch)
        switch.start()
        switch.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev", f"protocols={version}",
                     "fail_mode=secure", f"other_config:datapath-id={datapath_id}", "other_config:disable-in-band=true")
        for i in (1, 2, 3):
            switch.vsctl("add-port", "br0", f"{devices}{i}", "--", "set", "interface", f"{devices}{i}", f"ofport_request={i}")
        switch.vsctl("set-controller", "br0", f"tcp:{controller}:{PORT}", "--", "set", "controller", "br0", "max_backoff=1000")

    def close(self):
        for switch in self.switches:
            switch.close()
        self.net.close()


def run(pair, programs, application, tests, limit, show):
    """Runs the tester over one file or directory; the report's text. `show` is called with each line."""
    command = ["ip", "netns", "exec", pair.namespace, f"{programs}/osken-manager",
               "--ofp-listen-host", "0.0.0.0", "--ofp-tcp-listen-port", str(PORT),
               "--test-switch-dir", tests, "--test-switch-target", TARGET_ID, "--test-switch-tester", TESTER_ID,
               "--test-switch-target-version", pair.version.replace("OpenFlow1", "openflow1"),
               "--test-switch-tester-version", "openflow13", application]
    lines = []
    process = subprocess.Popen(["timeout", "--kill-after=10", str(limit), *command], text=True, errors="replace",
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                               env=dict(os.environ, PYTHONUNBUFFERED="1", PYTHONWARNINGS="ignore"))
    try:
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            show(lines[-1])
            if "Test end" in line or "Test terminated" in line:
                break
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        process.stdout.close()
        wait_for("the tester's end", lambda: process.poll() is not None, timeout=20)
    return lines


def results(lines):
    """{(file's description, test's description): (passed, reason)} of the tester's output, in its order."""
    found, group, last = {}, "", None
    for line in lines:
        if match := re.fullmatch(r" {4}(\S.*?) +(OK|ERROR)", line):
            last = (group, match[1])
            found[last] = (match[2] == "OK", "")
        elif line.startswith("        ") and last and not found[last][0]:
            found[last] = (False, line.strip())
        elif re.match(r"[a-z]+: ", line):
            group = line.strip()
    return found
