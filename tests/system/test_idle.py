#!/usr/bin/env python3
"""Workers with a processor of their own keep it from halting while packets come, and put back what stood there."""

import os
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import Skip, limit, main
from lab.shell import wait_for

CPU = sorted(os.sched_getaffinity(0))[-1]
HALTING = f"/sys/devices/system/cpu/cpu{CPU}/power/pm_qos_resume_latency_us"


def value():
    with open(HALTING) as file:
        return file.read().strip()


def pods(lab):
    """A switch whose only worker has a processor, and two pods."""
    if not os.access(HALTING, os.W_OK):
        raise Skip("this system does not say how long a processor's waking may take")
    if value() == "n/a":
        raise Skip("this processor is kept from halting by somebody else")
    sw = lab.switch()
    lab.bridge(sw)
    sw.vsctl("set", "Open_vSwitch", ".", f"other_config:pmd-cpu-mask={1 << CPU:x}")
    a = lab.internal_pod(sw, "a", "10.1.0.1/24")
    lab.internal_pod(sw, "b", "10.1.0.2/24")
    lab.net.ping(a, "10.1.0.2")
    return sw, a


class Pings:
    """A packet each way every millisecond, as long as the block lasts: some in a row also where others take the processor most of the time."""

    def __init__(self, namespace):
        self.argv = ["ip", "netns", "exec", namespace, "ping", "-q", "-i", "0.001", "-w", "300", "10.1.0.2"]

    def __enter__(self):
        self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait(60)


def wait_for_value(want):
    wait_for(f"{HALTING} to say {want}", lambda: value() == want, 90, 0.002)


@limit(420)
def scenario_awake_while_packets_come(lab):
    sw, a = pods(lab)
    before = value()
    with Pings(a):
        wait_for_value("n/a")
    wait_for_value(before)
    assert "  light sleep: yes\n" in sw.appctl("dpif-netdev/pmd-sleep-show")
    sw.vsctl("set", "Open_vSwitch", ".", "other_config:heddle-light-sleep=false")
    assert "  light sleep: no (heddle-light-sleep=false)\n" in sw.appctl("dpif-netdev/pmd-sleep-show")
    with Pings(a):
        time.sleep(1)
        assert value() == before
    sw.vsctl("remove", "Open_vSwitch", ".", "other_config", "heddle-light-sleep")
    with Pings(a):
        wait_for_value("n/a")
        sw.stop_daemon()
        assert value() == before


@limit(420)
def scenario_put_back_after_a_kill(lab):
    sw, a = pods(lab)
    before = value()
    try:
        with Pings(a):
            wait_for_value("n/a")
            sw.stop_daemon(signal.SIGKILL)
        # Whether or not it was killed in a moment without packets.
        with open(HALTING, "w") as file:
            file.write("n/a")
        sw.start_daemon()
        wait_for_value(before)
        with Pings(a):
            wait_for_value("n/a")
            sw.stop_daemon(signal.SIGKILL)
        with open(HALTING, "w") as file:
            file.write("n/a")
        # Also by one whose workers have no processor of their own.
        sw.vsctl("--no-wait", "remove", "Open_vSwitch", ".", "other_config", "pmd-cpu-mask")
        sw.start_daemon()
        wait_for_value(before)
    finally:
        if value() != before:
            with open(HALTING, "w") as file:
                file.write(before)


@limit(420)
def scenario_two_switches_share_a_processor(lab):
    """One that comes while another keeps the processor awake does not take that for what stood there, and puts it back if the other cannot."""
    sw, a = pods(lab)
    before = value()
    try:
        with Pings(a):
            wait_for_value("n/a")
            other = lab.switch()
            lab.bridge(other)
            other.vsctl("set", "Open_vSwitch", ".", f"other_config:pmd-cpu-mask={1 << CPU:x}")
            sw.stop_daemon(signal.SIGKILL)
        with open(HALTING, "w") as file:
            file.write("n/a")
        other.stop_daemon()
        assert value() == before
    finally:
        if value() != before:
            with open(HALTING, "w") as file:
                file.write(before)


if __name__ == "__main__":
    main()
