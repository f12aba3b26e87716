"""The measurements: each takes a contender and a time, and returns named numbers as the receiver saw them."""

import json
import os
import re
import subprocess
import time

from contenders import SERVER, SWITCH_CORE, Guests
from lab import ROOT
from lab.shell import wait_for


# Words before a program, so that it runs whenever it can, whatever else wants the processors.
REALTIME = ("chrt", "--fifo", "50")
# A client and a server of ordinary priority do not share their part of the processors, as pods do not.
OWN_SESSION = ("setsid", "--wait")
# Requests a second of the paced measurement.
PACE = 2_000
# Packets a second between virtual machines.
GUEST_PACE = 10_000


def pinned(contender, ns, *argv):
    return ["ip", "netns", "exec", ns, "taskset", "-c", contender.client_cores, *contender.before, *argv]


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


def paced(contender, seconds):
    """One-way latency in microseconds of requests with rests between them, p50 and p99."""
    blast = blaster(contender.trace)
    with Server(contender, [blast, "echo", f"{SERVER}:5304"], ":5304"):
        out = contender.trace.run(*pinned(contender, contender.a, blast, "ping", f"{SERVER}:5304", str(seconds), str(PACE)),
                                  timeout=seconds + 30, quiet=True)
    _, p50, p99 = out.split()
    return {"rested_p50_us": float(p50), "rested_p99_us": float(p99)}


def transactions(contender, seconds):
    """Requests a second of one client that waits for each reply, thousand."""
    blast = blaster(contender.trace)
    with Server(contender, [blast, "echo", f"{SERVER}:5304"], ":5304"):
        out = contender.trace.run(*pinned(contender, contender.a, blast, "ping", f"{SERVER}:5304", str(seconds), "1e9"),
                                  timeout=seconds + 30, quiet=True)
    return {"transactions_k": int(out.split()[0]) / seconds / 1e3}


def loss(load, alone, work):
    """The result of `work`, with the share of their time that the programs of the load lost meanwhile, per cent."""
    share, result = load.share(work)
    return result | ({"loss": max(0.0, 1 - share / alone) * 100} if alone else {})


def loaded(contender, load, alone, seconds):
    """One round beside a load, whose programs get `alone` processors by themselves. Clients and servers are real-time
    threads, so that packets wait for the switch only, except for `transactions`."""
    if isinstance(contender, Guests):
        with load.confined({SWITCH_CORE}):
            return contender.latency(GUEST_PACE, seconds)
    contender.before = REALTIME
    try:
        result = latency(contender, seconds)
        result |= loss(load, alone, lambda: paced(contender, seconds))
        result |= tcp(contender, seconds, 1)
        contender.before = OWN_SESSION
        return result | transactions(contender, seconds)
    finally:
        contender.before = ()


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
LOADED_COLUMNS = {
    "p50_us": COLUMNS["p50_us"], "p99_us": COLUMNS["p99_us"],
    "rested_p50_us": (f"{PACE} requests a second, one way, median", "us", 1, False),
    "rested_p99_us": (f"{PACE} requests a second, one way, 99th percentile", "us", 1, False),
    "loss": (f"time that the load's programs lose at {PACE} requests a second", "%", 1, None),
    "tcp1_gbps": COLUMNS["tcp1_gbps"], "tcp1_retransmits": COLUMNS["tcp1_retransmits"],
    "transactions_k": ("requests of an ordinary client", "thousand/s", 2, True),
}
