"""Lengths of a worker's iterations while rules are loaded beside traffic.

The traffic's flows match the first rules that are loaded, and one rule of low priority before that. An
iteration is one round of the worker over its queues, which the worker sorts by length (`pmd-perf-metrics`).
The process that loads the rules, and all other threads, stay on the generator's core. The worker runs under
SCHED_FIFO where that is allowed; with --shared, the scheduler places everything.

Turns of this measurement alternate with one of the machine itself (`machine.py`). Both count from the same
lengths on, those of the worker's histogram.
"""

import contextlib
import json
import os
import re
import socket
import struct
import subprocess
import tempfile
import threading
import time

from churn import message
from vhost_switches import BRIDGE, GENERATOR_CORE, SWITCH_CORE, Vhost, generate
from vhost_cases import Case
from machine import Machine, real_time

HELLO, FLOW_MOD, BARRIER, BARRIER_REPLY = 0, 14, 18, 19
WILDCARDS = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 20 | 1 << 21  # all but tag, Ethernet addresses, type of service
PORTS, DPORT = 1 << 14, 5001
FLOWS = 1_000
WANTED = (100, 200, 500, 1000, 2000, 5000)  # microseconds, about
BIN = re.compile(r"^ {3}(\d+|>) +(\d+) ", re.MULTILINE)
USED = re.compile(r"Measurement duration: ([\d.]+) s.*?Used TSC cycles: +(\d+) +\( *([\d.]+) %", re.DOTALL)


def rule(n):
    """The n-th rule of `heddle bench rules --kind exact`, in OpenFlow 1.0."""
    _, a, b, c = (n // PORTS).to_bytes(4, "big")
    match = struct.pack("!IH12xHBxHBB2x4s4sHH", WILDCARDS, 1, 0, 0, 0x0800, 0, 17, bytes((10, a, b, c)), bytes((20, a, c, b)),
                        1024 + n % PORTS, DPORT)
    body = match + struct.pack("!QHHHHIHH", 0, 0, 0, 0, 0x8000, 0xffffffff, 0xffff, 0) + struct.pack("!HHHH", 0, 8, 2, 0)
    return message(FLOW_MOD, 0, body)


def stream(path, chunks):
    """Sends flow mods as fast as the switch takes them, without barriers; returns when all are confirmed."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(path)
    sock.settimeout(100)
    sock.sendall(message(HELLO, 1))

    def send():
        for chunk in chunks:
            sock.sendall(chunk)
        sock.sendall(message(BARRIER, 7))
    sender = threading.Thread(target=send)
    sender.start()
    buffer, done = b"", False
    while not done:
        data = sock.recv(1 << 16)
        if not data:
            raise AssertionError("the switch hung up")
        buffer += data
        while len(buffer) >= 8:
            _, kind, length, xid = struct.unpack("!BBHI", buffer[:8])
            if len(buffer) < length:
                break
            if kind == 1:
                raise AssertionError(f"the switch refuses a rule: {buffer[8:12].hex()}")
            done = done or (kind == BARRIER_REPLY and xid == 7)
            buffer = buffer[length:]
    sender.join()
    sock.close()


def worker_thread(pid):
    """The thread that is pinned to the switch's core."""
    for tid in map(int, os.listdir(f"/proc/{pid}/task")):
        if os.sched_getaffinity(tid) == {SWITCH_CORE} and tid != pid:
            return tid
    raise AssertionError("no thread is pinned to the switch's core")


def waited(pid, tid):
    """Seconds that a thread was ready and did not run."""
    with open(f"/proc/{pid}/task/{tid}/schedstat") as file:
        return int(file.read().split()[1]) / 1e9


def taken(pid, tid):
    """Number of times that the kernel preempted a thread."""
    with open(f"/proc/{pid}/task/{tid}/status") as file:
        return int(re.search(r"nonvoluntary_ctxt_switches:\s+(\d+)", file.read())[1])


@contextlib.contextmanager
def undisturbed(pid, tid):
    """Keeps the loading process off the thread's processor. Yields whether the thread also precedes all
    threads without real-time policies."""
    for other in map(int, os.listdir(f"/proc/{pid}/task")):
        if other != tid:
            # Threads may have ended.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(other, {GENERATOR_CORE})
    os.sched_setaffinity(0, {GENERATOR_CORE})
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(real_time())
            os.sched_setscheduler(tid, os.SCHED_FIFO, os.sched_param(1))
        except PermissionError:
            yield False
            return
        try:
            yield True
        finally:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(tid, os.SCHED_OTHER, os.sched_param(0))


def lengths(text):
    """The worker's histogram of iterations: pairs of the lower bound in microseconds, near those wanted, and
    the number of iterations."""
    bins = [(int(wall), int(n)) for wall, n in BIN.findall(text.replace(">", "0"))]
    walls, counts = [wall for wall, _ in bins[:-1]], [n for _, n in bins]
    seconds, cycles, percent = map(float, USED.search(text).groups())
    per_us = cycles / percent * 100 / seconds / 1e6
    chosen = [min(range(len(walls)), key=lambda i, us=us: abs(walls[i] / per_us - us)) for us in WANTED]
    return [(walls[i] / per_us, sum(counts[i + 1:])) for i in chosen]


def told(found):
    return ", ".join(f"{n} of {us / 1e3:.1f}" for us, n in found) + " ms and more"


def bundle(switch, bridge, file, count):
    switch.run("ovs-ofctl", "--bundle", "add-flows", bridge, file, timeout=100, quiet=True)


def one_by_one(switch, bridge, file, count):
    stream(f"{switch.dir}/{bridge}.mgmt", (b"".join(rule(n) for n in range(at, min(at + 500, count))) for at in range(0, count, 500)))


def delete(switch, bridge, file, count):
    switch.run("ovs-ofctl", "--timeout=100", "del-flows", bridge, "udp,nw_src=10.0.0.0/8", timeout=100, quiet=True)
    time.sleep(2)


def expire(switch, bridge, file, count):
    """A bundle of rules that time out together, a second later."""
    def flows():
        return int(switch.ofctl("dump-aggregate", bridge).rsplit("flow_count=", 1)[1])
    before = flows()
    with open(file) as rules, tempfile.NamedTemporaryFile("w", prefix="heddle-rules-") as timed:
        timed.writelines(f"hard_timeout=1,{line}" for line in rules)
        timed.flush()
        bundle(switch, bridge, timed.name, count)
    while flows() > before:
        time.sleep(0.2)


class Beside:
    """A switch with vhost-user ports under steady traffic."""

    def __init__(self, binary, heddle, rate, fifo):
        self.rate, self.fifo, self.heddle = rate, fifo, heddle
        self.switch = Vhost("heddle", binary, heddle, options=("other_config:pmd-perf-metrics=true",))

    def phase(self, what, seconds, work):
        """Traffic for `seconds`, `work` beside it. Prints the results."""
        pid = self.switch.switch.pid
        tid = worker_thread(pid)
        found, begun = {}, threading.Event()

        def began():
            self.switch.clear()
            found.update(waited=waited(pid, tid), taken=taken(pid, tid))
            begun.set()

        def ended():
            text = self.switch.unixctl.call("dpif-netdev/pmd-perf-show", "-pmd", str(SWITCH_CORE))
            found.update(waited=waited(pid, tid) - found["waited"], taken=taken(pid, tid) - found["taken"],
                         lengths=lengths(text))

        def beside():
            begun.wait(60)
            start = time.monotonic()
            try:
                work()
            except Exception as error:  # noqa: BLE001 - reported at the end
                found["error"] = error
            found["took"] = time.monotonic() - start
        thread = threading.Thread(target=beside)
        thread.start()
        ports = [word for port in range(2) for word in ("--port", f"listen:{self.switch.socket(port)}")]
        case = Case(flows=FLOWS)
        with undisturbed(pid, tid) if self.fifo else contextlib.nullcontext(False) as alone:
            result = generate(self.heddle, ["vhost", *ports, *case.arguments(seconds, self.rate)], began=began, ended=ended, pid=pid)
        thread.join()
        if "error" in found:
            raise found["error"]
        latency = result["latency"]
        print(f"{what:30} processor {'real-time, ' if alone else ''}taken away {found['taken']} times, waited for {found['waited'] * 1e3:.0f} ms; "
              f"latency p99 {latency['p99_us']:.0f}, p99.9 {latency['p999_us']:.0f}, max {latency['max_us']:.0f} us; "
              f"{result['received_pps'] / 1e3:.0f} kpps, lost {result['loss'] * 100:.3f} %; done after {found['took']:.1f} of {seconds:.0f} s\n"
              f"{'':30} iterations: {told(found['lengths'])}", flush=True)
        return found

    def run(self, count, file, seconds, bundled, rounds, expires=False):
        machine = Machine(self.switch.binary)
        try:
            self.switch.setup(2)
            machine.setup()
            self.switch.switch.ofctl("add-flow", BRIDGE, "priority=1,in_port=1,actions=output:2")
            load = (f"{count} rules, {'a bundle' if bundled else 'one by one'}", bundle if bundled else one_by_one)
            loads = [load, ("... all deleted", delete)]
            if expires:
                loads = [(f"{count} rules, which time out", expire)]
            for _ in range(rounds):
                for what, work in [("no rules", lambda *_: None), *loads]:
                    last = min(seconds, 10) if what == "no rules" else seconds
                    found = self.phase(what, last, lambda work=work: work(self.switch.switch, BRIDGE, file, count))
                    self.switch.freeze()
                    gaps = machine.phase(last, [us for us, _ in found["lengths"]], lambda switch, bridge, work=work: work(switch, bridge, file, count))
                    self.switch.thaw()
                    print(f"{'':30} the machine: {told(gaps)}", flush=True)
        finally:
            machine.close()
            self.switch.close()
