"""Probes that run beside a scenario: pings that find gaps, iperf3, and a transfer whose every byte is compared."""

import hashlib
import json
import re
import socket
import subprocess
import threading
import time

from .shell import PATIENCE, wait_for

PORT = 5201


class Pings:
    """Pings from a pod in the background; counts the lost ones and measures the longest silence."""

    def __init__(self, net, ns, target, interval=0.02):
        self.net, self.interval = net, interval
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", ns, "ping", "-n", "-D", "-i", str(interval), "-W", "5", target],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.output, self.pauses = [], []
        self.thread = threading.Thread(target=lambda: self.output.extend(self.process.stdout), daemon=True)
        self.thread.start()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self):
        """Notes when the whole machine stood still: a thread that only sleeps was late, too."""
        while self.process.poll() is None:
            began = time.time()
            time.sleep(0.01)
            ended = time.time()
            if ended - began > 0.1:
                self.pauses.append((began, ended))

    def stood_still(self, began, ended):
        """For how many milliseconds of that time."""
        return 1000 * sum(max(0.0, min(late, ended) - max(early, began)) for early, late in self.pauses)

    def late(self, worst_ms):
        """Number of pings that took longer, without the time in which the machine stood still."""
        return sum(took > worst_ms + self.stood_still(at - took / 1000, at) for at, _, took in self.answers())

    def silent(self, worst_ms):
        """Whether there was a longer silence, without the time in which the machine stood still."""
        times = [at for at, _, _ in self.answers()]
        return any(1000 * (late - early) > worst_ms + self.stood_still(early, late) for early, late in zip(times, times[1:]))

    def answers(self):
        """(time, sequence number) of each reply so far."""
        found = (re.match(r"\[([0-9.]+)\] .*icmp_seq=(\d+) ttl=.* time=([0-9.]+)", line) for line in self.output)
        return [(float(m[1]), int(m[2]), float(m[3])) for m in found if m]

    def wait_answer(self, timeout=PATIENCE):
        """Waits for a reply after this call."""
        before = len(self.answers())
        wait_for("a ping to be answered", lambda: len(self.answers()) > before, timeout)

    def stop(self):
        """Ends; returns (sent, lost, longest silence in ms)."""
        self.process.send_signal(2)
        self.process.wait(PATIENCE)
        self.thread.join(PATIENCE)
        answers = self.answers()
        summary = re.search(r"(\d+) packets transmitted", "".join(self.output))
        sent = int(summary[1]) if summary else 0
        # The last replies may still have been on their way.
        numbers = {number for _, number, _ in answers}
        last = max(numbers, default=0)
        lost = sum(1 for number in range(1, last + 1) if number not in numbers)
        gaps = [late - early for (early, _, _), (late, _, _) in zip(answers, answers[1:])]
        self.net.trace.note(f"pings: {sent} sent, {lost} lost, gaps {sorted(gaps)[-5:]}")
        return sent, lost, 1000 * max(gaps, default=0.0)


def median_rtt_ms(net, ns, target, count=50):
    out = net.run(ns, "ping", "-n", "-c", count, "-i", "0.02", "-W", "5", target, timeout=60)
    times = sorted(float(m) for m in re.findall(r" time=([0-9.]+)", out))
    if len(times) < count:
        raise AssertionError(f"{count - len(times)} of {count} pings unanswered")
    return times[len(times) // 2]


class Iperf:
    """iperf3 between a pod, who is the client, and a guest; backwards: the guest sends."""

    def __init__(self, net, ns, guest, target, seconds, backwards=False, extra=()):
        self.net, self.seconds = net, seconds
        serve(guest)
        words = ["ip", "netns", "exec", ns, "iperf3", "-J", "-c", target, "-t", str(seconds), "-i", "0.5"]
        words += ["-R"] * backwards + [str(word) for word in extra]
        net.trace.note(f"$ {' '.join(words)} &")
        self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)

    def result(self, patience=30):
        """Waits for the end; (Mbit/s received, Mbit/s of every half second)."""
        try:
            out, _ = self.process.communicate(timeout=self.seconds + patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise AssertionError("iperf3 did not end") from None
        return parse_iperf(out)


def parse_iperf(text):
    # A warning (datagrams beyond the MTU) may come before the figures.
    at = text.find("{")
    if at < 0:
        raise AssertionError(f"iperf3 said: {text.strip()[:300]}")
    data = json.loads(text[at:])
    if data.get("error"):
        raise AssertionError(f"iperf3: {data['error']}")
    end = data["end"]
    total = end.get("sum_received") or end["sum"]
    return total["bits_per_second"] / 1e6, [i["sum"]["bits_per_second"] / 1e6 for i in data["intervals"]]


def serve(guest, port=PORT):
    """An iperf3 server for one test inside the guest."""
    # A server of an earlier test that was cut off may still be waiting.
    guest.run(f"killall -q iperf3; iperf3 -s -1 -p {port} >/tmp/iperf.log 2>&1 & "
              f"for i in $(seq 100); do netstat -ltn | grep -q :{port} && exit 0; sleep 0.05; done; exit 1")


def guest_to_guest(sender, receiver, target, seconds, extra=""):
    """Mbit/s received by the second guest."""
    serve(receiver)
    sender.run(f"iperf3 -J -i 0 -c {target} -t {seconds} {extra} >/tmp/client.json 2>&1", timeout=seconds + 40,
               check=False)
    return parse_iperf(sender.run("cat /tmp/client.json"))[0]


class Stream:
    """Megabytes of known bytes over TCP between a pod and a guest while something happens; each side's hash must agree.

    Checksums are not completed between a guest and a pod that trust the switch, so iperf3 would not see a corrupted
    segment: this does.
    """

    def __init__(self, net, ns, guest, target, to_guest, port, pace_mbit=40):
        self.net, self.guest, self.to_guest, self.port = net, guest, to_guest, port
        self.hash = hashlib.sha256()
        self.bytes = 0
        self.error = None
        self.stopping = threading.Event()
        self.pace = pace_mbit * 1e6 / 8
        if to_guest:
            guest.run(f"nc -l -p {port} </dev/null >/tmp/stream.{port} 2>/tmp/nc.{port} & "
                      f"for i in $(seq 100); do netstat -ltn | grep -q :{port} && exit 0; sleep 0.05; done; exit 1")
        else:
            # Repeats of a block that differs from place to place within 64 KiB; the pod hashes what it gets.
            guest.run(f"head -c 16m /dev/urandom >/tmp/block.{port}; (while cat /tmp/block.{port}; do :; done) | "
                      f"nc -l -p {port} >/dev/null 2>&1 & "
                      f"for i in $(seq 100); do netstat -ltn | grep -q :{port} && exit 0; sleep 0.05; done; exit 1")
        self.sock = net.socket(ns, lambda: socket.create_connection((target, port), timeout=10))
        self.sock.settimeout(40)
        self.thread = threading.Thread(target=self._send if to_guest else self._receive, daemon=True)
        self.thread.start()

    def _send(self):
        block = hashlib.sha512(str(self.port).encode()).digest() * 1024
        try:
            began = time.monotonic()
            while not self.stopping.is_set():
                # Each block is different: one that came twice or not at all changes the hash.
                data = self.bytes.to_bytes(8, "big") + block[8:]
                self.sock.sendall(data)
                self.hash.update(data)
                self.bytes += len(data)
                time.sleep(max(0.0, self.bytes / self.pace - (time.monotonic() - began)))
            self.sock.shutdown(socket.SHUT_WR)
        except OSError as exc:
            self.error = exc

    def _receive(self):
        try:
            began = time.monotonic()
            while not self.stopping.is_set():
                data = self.sock.recv(65536)
                if not data:
                    raise ConnectionError("the guest closed the stream")
                self.hash.update(data)
                self.bytes += len(data)
                time.sleep(max(0.0, self.bytes / self.pace - (time.monotonic() - began)))
        except OSError as exc:
            self.error = exc

    def goes_on(self, timeout=40):
        """Waits until another quarter of a megabyte has gone over the connection that was there before."""
        before = self.bytes
        wait_for("the stream to go on", lambda: self.bytes >= before + (1 << 18) or self.error, timeout)
        if self.error:
            raise AssertionError(f"the stream broke: {self.error}")

    def finish(self, guest=None):
        """Ends and compares; returns the MiB that went over.  guest: where it lives by now."""
        guest = guest or self.guest
        self.stopping.set()
        self.thread.join(45)
        if self.error or self.thread.is_alive():
            raise AssertionError(f"the stream broke after {self.bytes} bytes: {self.error}")
        if self.to_guest:
            name = f"/tmp/stream.{self.port}"
            wait_for("the guest to have all of the stream",
                     lambda: int(guest.run(f"wc -c <{name}")) >= self.bytes, 30, 0.3)
            seen = checksum(guest, f"sha256sum <{name}")
            guest.run(f"rm {name}")
        else:
            rest = self.bytes % (16 << 20)
            whole = self.bytes // (16 << 20)
            words = f"cat {' '.join([f'/tmp/block.{self.port}'] * whole)}; " if whole else ""
            seen = checksum(guest, f"({words}head -c {rest} /tmp/block.{self.port}) | sha256sum")
        self.sock.close()
        if seen != self.hash.hexdigest():
            raise AssertionError(f"the stream ({'to' if self.to_guest else 'from'} the guest) was corrupted")
        return self.bytes / (1 << 20)


def checksum(guest, command):
    """The first word that `command` prints in the guest. A stalled emulated guest may print nothing, so the
    command is repeated."""
    for _ in range(3):
        words = guest.run(command, timeout=90).split()
        if words:
            return words[0]
    raise AssertionError(f"the guest says nothing to: {command}")
