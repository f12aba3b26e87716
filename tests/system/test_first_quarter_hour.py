#!/usr/bin/env python3
"""Tests docs/first-quarter-hour.md: its commands run unchanged, and each step's promised result is
checked."""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import REFERENCE, ROOT, daemon_path
from lab.runner import Skip, main
from lab.shell import wait_for
from lab.switch import read_pid
from lab.vhost import Guest, heddle_path

STEP = re.compile(r"^## (.*?)$|^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)


def steps():
    """Headings of the page with their blocks of commands."""
    found = {}
    heading = None
    with open(os.path.join(ROOT, "docs", "first-quarter-hour.md")) as file:
        for name, block in STEP.findall(file.read()):
            if name:
                heading = name
            else:
                found.setdefault(heading, []).append(block)
    return found


def try_telnet(lab, pod):
    """Whether 10.0.0.2 replies at the port of telnet: a refusal is a reply."""
    code = ("import socket,sys\ntry: socket.create_connection(('10.0.0.2', 23), 1)\nexcept ConnectionRefusedError: print('answered')\n"
            "except OSError: print('silence')")
    return lab.net.run(pod, "python3", "-c", code).strip()


def scenario_the_page(lab):
    if not (os.access(heddle_path(), os.X_OK) and os.access(REFERENCE, os.X_OK)):
        raise Skip("heddle or Open vSwitch is not there")
    page = steps()
    assert list(page) == ["Look at what runs", "Replace it", "A virtual machine", "Why does this packet not arrive?", "Watch it", "Go back"], list(page)
    sw = lab.switch(binary=REFERENCE)
    if os.path.realpath(daemon_path()) == os.path.realpath(REFERENCE):
        raise Skip("this is Open vSwitch itself")
    tools = tempfile.mkdtemp(prefix="heddle-tools-")
    lab.cleanups.append(lambda: subprocess.run(["rm", "-rf", tools], check=False))
    # The paths that an installation would give them.
    for name, path in (("heddled", daemon_path()), ("heddle", heddle_path()), ("ovs-vswitchd", REFERENCE)):
        with open(f"{tools}/{name}", "w") as file:
            extra = f' --disable-system --unixctl="{sw.ctl}" -vconsole:off' if name != "heddle" else ""
            file.write(f'#!/bin/sh\nexec "{path}" "$@"{extra}\n')
        os.chmod(f"{tools}/{name}", 0o755)
    env = {**os.environ, **sw.env, "OVS_DB": sw.db, "PATH": f"{tools}:{os.environ['PATH']}", "VSCTL": "1"}
    # Daemons of this lab have their control socket by this name.
    script = (f'ovs-appctl() {{ command ovs-appctl -t "{sw.ctl}" "$@"; }}\novs-vsctl() {{ command ovs-vsctl --db="{sw.db}" --timeout=30 "$@"; }}\n'
              f'heddle() {{ c=$1; shift; command heddle "$c" --target "{sw.ctl}" "$@"; }}\n')

    def run(block):
        done = subprocess.run(["ip", "netns", "exec", sw.netns, "bash", "-euc", script + block], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env=env, cwd=sw.dir, timeout=100, check=False, stdin=subprocess.DEVNULL)
        sw.trace.note(f"{block}\n{done.returncode}: {done.stdout[:4000]}")
        assert done.returncode == 0, (block, done.stdout)
        sw.pid = read_pid(sw.pidfile)
        return done.stdout

    # The state before: two bridges, joined, and two pods on the first.
    lab.bridge(sw, "br-int")
    lab.bridge(sw, "br-ex")
    sw.vsctl("add-port", "br-int", "to-ex", "--", "set", "interface", "to-ex", "type=patch", "options:peer=to-int",
             "--", "add-port", "br-ex", "to-int", "--", "set", "interface", "to-int", "type=patch", "options:peer=to-ex")
    red = lab.veth_pod(sw, "red", "10.0.0.1/24", bridge="br-int", offload=False)
    blue = lab.veth_pod(sw, "blue", "10.0.0.2/24", bridge="br-int", offload=False)
    world = lab.veth_pod(sw, "world", "10.0.0.100/24", bridge="br-ex", offload=False)
    sw.ofctl("add-flow", "br-int", "priority=200,cookie=0x77,tcp,nw_dst=10.0.0.2,tp_dst=23,actions=drop")
    lab.net.ping(red, "10.0.0.2")
    lab.net.ping(blue, "10.0.0.100")

    assert "Open vSwitch" in run(page["Look at what runs"][0])
    said = run(page["Replace it"][0])
    assert "heddled" in said and "br-ex" in said, said
    lab.net.ping(red, "10.0.0.2")
    lab.net.ping(world, "10.0.0.1")
    run(page["A virtual machine"][0])
    guest = Guest(lab, "vm", f"{sw.dir}/vm0.sock", "10.0.0.3/24")
    wait_for("the guest's answer", lambda: lab.net.ping(red, "10.0.0.3", count=1, lossless=False))

    assert try_telnet(lab, red) == "silence"
    explain, capture = page["Why does this packet not arrive?"]
    said = wait_for("the explanation", lambda: (out := run(explain)) and "cookie 0x77" in out and out)
    assert "bridge br-int, table 0" in said and "drop_action_of_pipeline at vred" in said and "ovs-appctl ofproto/trace" in said, said
    stop = threading.Event()

    def go_on():
        while not stop.is_set():
            try_telnet(lab, red)
            time.sleep(0.1)
    sender = threading.Thread(target=go_on)
    sender.start()
    try:
        said = run(capture)
    finally:
        stop.set()
        sender.join()
    assert "10.0.0.2.23" in said and "1 packet captured" in said, said
    said = run(page["Watch it"][0])
    assert re.search(r'heddle_drops_total\{reason="drop_action_of_pipeline"\} [1-9]', said) and "vred" in said, said
    guest.stop()
    said = run(page["Go back"][0])
    assert "Open vSwitch" in said and "heddled" not in said, said
    lab.net.ping(red, "10.0.0.2")
    lab.net.ping(blue, "10.0.0.100")
    assert try_telnet(lab, red) == "silence", "the rule is there again"


if __name__ == "__main__":
    main()
