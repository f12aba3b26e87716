#!/usr/bin/env python3
"""Workers keep processors from halting while packets come, if configured, and the kernel ends it with the
process."""

import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import Skip, limit, main
from lab.shell import wait_for

DEVICE = "/dev/cpu_dma_latency"


def holds(sw):
    fds = f"/proc/{sw.pid}/fd"
    links = []
    for fd in os.listdir(fds):
        try:
            links.append(os.readlink(f"{fds}/{fd}"))
        except FileNotFoundError:
            pass
    return DEVICE in links


@limit(420)
def scenario_awake_while_packets_come(lab):
    if not os.access(DEVICE, os.W_OK):
        raise Skip("this system does not say how long a processor's waking may take")
    sw = lab.switch()
    lab.bridge(sw)
    a = lab.internal_pod(sw, "a", "10.1.0.1/24")
    lab.internal_pod(sw, "b", "10.1.0.2/24")
    lab.net.ping(a, "10.1.0.2")
    # A packet each way every millisecond: some follow each other also if other programs use the processor
    # most of the time.
    pings = subprocess.Popen(["ip", "netns", "exec", a, "ping", "-q", "-i", "0.001", "-w", "300", "10.1.0.2"],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            assert not holds(sw), "nobody has asked for it"
            time.sleep(0.01)
        sw.vsctl("set", "Open_vSwitch", ".", "other_config:heddle-light-sleep=true")
        wait_for("processors to be kept awake", lambda: holds(sw), 90, 0.002)
    finally:
        pings.terminate()
        pings.wait(60)
    wait_for("processors to be let go", lambda: not holds(sw), 90, 0.002)


if __name__ == "__main__":
    main()
