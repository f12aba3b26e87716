"""Guests without virtual machines: `heddle guest` behind a vhost-user port, its tap device in a namespace of its own."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import zlib

from . import daemon_path
from .shell import PATIENCE, wait_for
from .switch import end_process, process_alive


def heddle_path():
    """The command `heddle`: $HEDDLE, or beside the daemon under test."""
    return os.path.abspath(os.environ.get("HEDDLE") or os.path.join(os.path.dirname(daemon_path()), "heddle"))


class Guest:
    """A pretended guest. listen: the switch connects to it (dpdkvhostuserclient)."""

    def __init__(self, lab, name, path, address=None, listen=True, args=(), mac=None):
        self.lab, self.name, self.path = lab, name, path
        self.endpoint = f"{'listen' if listen else 'connect'}:{path}"
        self.args = [str(arg) for arg in args]
        # A guest's address stays when the guest is restarted, as a virtual machine's does.
        self.address, self.mac = address, mac or "52:54:" + zlib.crc32(name.encode()).to_bytes(4, "big").hex(":")
        self.ns = lab.net.namespace(name)
        self.log = f"{os.path.dirname(path)}/guest-{name}.log"
        self.proc = None
        self.lives = 0
        lab.cleanups.append(self.stop)
        self.start()

    def start(self):
        argv = ["ip", "netns", "exec", self.ns, heddle_path(), "guest", "--port", self.endpoint, "--tap", "eth0", *self.args]
        self.lab.trace.note("& " + " ".join(argv))
        with open(self.log, "a") as out:
            self.proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.lives += 1
        wait_for(f"{self.name}'s device", lambda: self.text().count("is there") >= self.lives)
        if self.address:
            self.lab.net.address(self.ns, "eth0", self.address, self.mac)
        self.lab.net.ip(self.ns, "link", "set", "eth0", "up")

    def text(self):
        with open(self.log, errors="replace") as file:
            return file.read()

    def connected(self, times=1, timeout=PATIENCE):
        """Waits for the session (of this life or earlier ones, counted)."""
        wait_for(f"{self.name} connected", lambda: self.text().count("\nconnected\n") >= times, timeout)
        return self

    def alive(self):
        return self.proc is not None and self.proc.poll() is None and process_alive(self.proc.pid)

    def stop(self, sig=signal.SIGKILL):
        """Ends the guest as a dying hypervisor would."""
        if self.proc and self.proc.poll() is None:
            # The program's tap goes with it, which takes the kernel time while all processors are busy.
            end_process(self.proc.pid, sig)
        if self.proc:
            self.proc.wait(10)
        self.proc = None


SERVER = """
import hashlib, socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("0.0.0.0", int(sys.argv[1])))
s.listen(1)
s.settimeout(120)
print("ready", flush=True)
c, _ = s.accept()
c.settimeout(120)
h, n = hashlib.sha256(), 0
while True:
    data = c.recv(1 << 20)
    if not data:
        break
    h.update(data)
    n += len(data)
print(n, h.hexdigest(), flush=True)
"""

CLIENT = """
import random, select, socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=120)
block = random.Random(1).randbytes(1 << 20)
n = int(sys.argv[3])
sent = 0
while sent < n or not n and not select.select([sys.stdin], [], [], 0)[0]:
    s.sendall(block)
    sent += 1
s.shutdown(socket.SHUT_WR)
s.recv(1)
print(sent)
"""


class Transfer:
    """TCP from one namespace to another, every byte checked. Without a number of megabytes it sends until
    finish()."""

    port = 5000

    def __init__(self, lab, source, target, address, megabytes=0):
        Transfer.port += 1
        self.lab = lab
        port = str(Transfer.port)

        def start(ns, code, *args):
            argv = ["ip", "netns", "exec", ns, sys.executable, "-c", code, *args]
            return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.server = start(target, SERVER, port)
        lab.cleanups.append(self.end)
        self.client = None
        assert self.server.stdout.readline() == "ready\n"
        self.client = start(source, CLIENT, address, port, str(megabytes))

    def running(self):
        return self.client.poll() is None

    def finish(self, timeout=200):
        """Waits for the end: all bytes arrived as they were sent; returns the megabytes."""
        # A client without a number sends until its input ends.
        said, _ = self.client.communicate(timeout=timeout)
        text, _ = self.server.communicate(timeout=timeout)
        self.lab.trace.note(f"transfer: sent {said.strip()}, received {text.strip()}")
        assert self.client.returncode == 0, (text, said)
        block, want = random.Random(1).randbytes(1 << 20), hashlib.sha256()
        for _ in range(int(said)):
            want.update(block)
        assert text.split() == [str(int(said) << 20), want.hexdigest()], (text, said)
        return int(said)

    def end(self):
        for proc in (self.client, self.server):
            if proc and proc.poll() is None:
                proc.kill()
                proc.wait(10)


def transfer(lab, source, target, address, megabytes=20):
    Transfer(lab, source, target, address, megabytes).finish()


class Load:
    """`heddle bench vhost` beside the scenario, until finish(): guests behind ports that connect, of which each sends to the next; every byte and number
    is checked."""

    def __init__(self, lab, names, directory, *args, core=0):
        argv = [heddle_path(), "bench", "vhost", *(f"--port=listen:{directory}/{name}.sock" for name in names), "--check", "content",
                "--size", "1514", "--ring", "1024", "--huge", "no", "--core", core, "--switch-core", 1 - core, "--seconds", "600",
                "--drain", "10", "--events", "--json", *args]
        self.lab = lab
        argv = [str(arg) for arg in argv]
        lab.trace.note("& " + " ".join(argv))
        self.proc = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lab.cleanups.append(self.end)

    def measuring(self):
        """Waits until packets flow."""
        line = self.proc.stdout.readline()
        assert "measuring" in line, line + self.proc.stderr.read()
        return self

    def running(self):
        return self.proc.poll() is None

    def finish(self, timeout=200):
        """The result of the load. No packet was changed or overtaken."""
        self.proc.send_signal(signal.SIGINT)
        out, err = self.proc.communicate(timeout=timeout)
        self.lab.trace.note(f"load: {out.strip()} {err.strip()}")
        assert self.proc.returncode == 0, err
        result = json.loads(out.splitlines()[-1])
        assert result["corrupt"] == result["reordered"] == 0 < result["received_total"] == result["read"], result
        return result

    def end(self):
        if self.proc.poll() is None:
            self.proc.kill()
            self.proc.wait(10)
