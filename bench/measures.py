"""The measurements: each takes a contender and a time, and returns named numbers as the receiver saw them."""

import json
import os
import re
import subprocess
import time

from contenders import SERVER
from lab import ROOT
from lab.shell import wait_for


def pinned(contender, ns, *argv):
    return ["ip", "netns", "exec", ns, "taskset", "-c", contender.client_cores, *argv]


class Server:
    """A server process in namespace b for the length of a with-block."""

    def __init__(self, contender, argv, listening):
        self.argv, self.contender, self.listening = pinned(contender, contender.b, *argv), contender, listening

    def __enter__(self):
        self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        wait_for("the server", lambda: self.listening in self.contender.net.run(
            self.contender.b, "ss", "-Hlntu", quiet=True), 10)

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def tcp(contender, seconds, streams):
    """Gbit/s received and segments sent again."""
    with Server(contender, ["iperf3", "-s", "-1", "-p", "5301"], ":5301"):
        out = contender.trace.run(*pinned(contender, contender.a, "iperf3", "-J", "-c", contender.target, "-p", "5301", "-t", str(seconds),
                                          "-O", "0.5" if seconds < 2 else "1", "-P", str(streams)),
                                  timeout=seconds + 30, quiet=True)
    end = json.loads(out)["end"]
    return {f"tcp{streams}_gbps": end["sum_received"]["bits_per_second"] / 1e9,
            f"tcp{streams}_retransmits": end["sum_sent"]["retransmits"]}


def received(contender):
    """Frames that the receiving end's device has delivered."""
    out = contender.net.run(contender.b, "cat", "/proc/net/dev", quiet=True)
    row = next(line for line in out.splitlines() if re.match(r"\s*(eth0|tapb):", line))
    return int(row.split(":")[1].split()[1])


def blaster(trace):
    """The path of the load generator, built when its source is newer."""
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "udp_blast.rs")
    binary = os.path.join(ROOT, "target", "bench", "udp_blast")
    if not os.path.exists(binary) or os.path.getmtime(binary) < os.path.getmtime(source):
        os.makedirs(os.path.dirname(binary), exist_ok=True)
        trace.run("rustc", "-O", "--edition", "2024", "-o", binary, source, timeout=120)
    return binary


def udp64(contender, seconds):
    """Thousands of frames of 64 B (with the FCS, 18 B of payload) per second: received, and offered."""
    blast = blaster(contender.trace)
    with Server(contender, [blast, "sink", f"{SERVER}:5302"], ":5302"):
        before, began = received(contender), time.monotonic()
        out = contender.trace.run(*pinned(contender, contender.a, blast, "send", f"{SERVER}:5302", str(seconds), "18"),
                                  timeout=seconds + 30, quiet=True)
        took = time.monotonic() - began
        after = received(contender)
    return {"udp64_kpps": (after - before) / took / 1e3, "udp64_offered_kpps": int(out) / took / 1e3}


def latency(contender, seconds, attempts=3):
    """One-way latency (half of a round trip) in microseconds, p50 and p99.

    A datagram that is lost early leaves sockperf without a result: then it runs once more.
    """
    for _ in range(attempts):
        with Server(contender, ["sockperf", "server", "-p", "5303"], ":5303"):
            out = contender.trace.run(*pinned(contender, contender.a, "sockperf", "ping-pong", "-i", contender.target, "-p", "5303",
                                              "-m", "18", "-t", str(max(2, seconds))), timeout=seconds + 30, check=False,
                                      quiet=True)
        found = dict(re.findall(r"percentile (\d+\.\d+) =\s+([\d.]+)", out))
        if {"50.000", "99.000"} <= found.keys():
            return {"p50_us": float(found["50.000"]), "p99_us": float(found["99.000"])}
    raise AssertionError(f"{contender.name}: sockperf measured nothing in {attempts} attempts\n{out[-2000:]}")


def measure(contender, seconds):
    """One round of everything for one contender."""
    result = {}
    result |= tcp(contender, seconds, 1)
    result |= tcp(contender, seconds, 4)
    result |= udp64(contender, seconds)
    result |= latency(contender, seconds)
    return result


# name -> (title, unit, decimals, more is better)
COLUMNS = {
    "tcp1_gbps": ("TCP, 1 stream", "Gbit/s", 2, True),
    "tcp1_retransmits": ("TCP, 1 stream: segments sent again", "segments", 0, None),
    "tcp4_gbps": ("TCP, 4 streams", "Gbit/s", 2, True),
    "tcp4_retransmits": ("TCP, 4 streams: segments sent again", "segments", 0, None),
    "udp64_kpps": ("UDP, 64 B frames received", "thousand/s", 0, True),
    "udp64_offered_kpps": ("UDP, 64 B frames offered by the sender", "thousand/s", 0, None),
    "p50_us": ("UDP ping-pong, one way, median", "us", 1, False),
    "p99_us": ("UDP ping-pong, one way, 99th percentile", "us", 1, False),
}
