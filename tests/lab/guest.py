"""An emulated Linux guest whose network cards are vhost-user front ends, and commands run inside it.

The guest is built by tests/lab/setup-guest: a 6.12 kernel and an initramfs whose /init runs commands from the
second serial port. Nothing of it touches a disk, so a guest can be killed at any moment and can migrate. QEMU
emulates (TCG): a boot takes 5 to 10 s on an idle machine. About one in fifty dies silently, so a boot is
tried twice.
"""

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time

from . import ROOT, daemon_path
from .qmp import Qmp
from .shell import CommandError
from .switch import process_alive, remove

CACHE = os.environ.get("HEDDLE_LAB_CACHE") or os.path.join(
    os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "heddle-lab")
SETUP = os.path.join(os.path.dirname(os.path.abspath(__file__)), "setup-guest")


def obtain(*parts, fetch=True):
    """Runs setup-guest; returns None, or the reason why the lab cannot run here."""
    proc = subprocess.run([SETUP, *([] if fetch else ["--check"]), *parts], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False)
    if proc.returncode == 0:
        return None
    lines = [line for line in proc.stdout.splitlines() if line.strip()] or ["setup-guest said nothing"]
    return lines[-1].removeprefix("lab: ") if proc.returncode == 3 else f"setup-guest failed: {lines[-1]}"


class Nic:
    """A vhost-user card.  path: the socket; listens: whether QEMU owns it (a dpdkvhostuserclient port comes to it)."""

    def __init__(self, path, mac, listens=True, queues=1, **properties):
        self.path, self.mac, self.listens, self.queues = path, mac, listens, queues
        self.properties = properties

    def arguments(self, index, qemu):
        if self.listens:
            mode = "server=on,wait=off"
        else:
            mode = "reconnect-ms=250" if qemu == "qemu10" else "reconnect=1"
        properties = dict(self.properties)
        if self.queues > 1:
            properties.setdefault("mq", "on")
        if qemu == "qemu7":
            # Without this, QEMU 7.2 dies at DRIVER_OK when it emulates MSI-X beside vhost-user.
            properties.setdefault("vectors", 0)
        elif self.queues > 1:
            properties.setdefault("vectors", 2 * self.queues + 2)
        extra = "".join(f",{key}={value}" for key, value in properties.items())
        return ["-chardev", f"socket,id=c{index},path={self.path},{mode}",
                "-netdev", f"vhost-user,id=n{index},chardev=c{index},queues={self.queues}",
                "-device", f"virtio-net-pci,netdev=n{index},mac={self.mac},romfile={extra}"]


class FailoverPair:
    """A fast card with a virtio card as its standby, in one namespace of this machine (virtio 1.2, 5.1.3:
    VIRTIO_NET_F_STANDBY). QEMU unplugs the fast card for a migration, and plugs it in at the target.

    model: e1000e or igb; representor: tap whose other end is that card; standby: tap, or path of a
    vhost-user socket (of a dpdkvhostuserclient port)."""

    def __init__(self, model, mac, representor, standby):
        self.model, self.mac, self.representor, self.standby = model, mac, representor, standby

    def arguments(self, index, qemu):
        # Open vSwitch without userspace-tso does not complete the partial checksums of a virtio header.
        tap = "script=no,downscript=no,vnet_hdr=off"
        standby = ["-netdev", f"tap,id=s{index},ifname={self.standby},{tap}"]
        if "/" in self.standby:
            standby = ["-chardev", f"socket,id=c{index},path={self.standby},server=on,wait=off",
                       "-netdev", f"vhost-user,id=s{index},chardev=c{index}"]
        return [*standby, "-netdev", f"tap,id=p{index},ifname={self.representor},{tap}",
                "-device", f"pcie-root-port,id=slot{2 * index},chassis={2 * index + 1}",
                "-device", f"pcie-root-port,id=slot{2 * index + 1},chassis={2 * index + 2}",
                "-device", f"virtio-net-pci,id=virtio{index},bus=slot{2 * index},netdev=s{index},mac={self.mac},romfile=,failover=on",
                "-device", f"{self.model},id=fast{index},bus=slot{2 * index + 1},netdev=p{index},mac={self.mac},romfile=,"
                           f"failover_pair_id=virtio{index}"]


class Guest:
    """One QEMU process.  qemu: qemu10 or qemu7; memory in MiB; incoming: where a migration will come from.

    variant: "-next" for the kernel of setup-guest's part kernel-next. `machine` are further words of QEMU's command line.
    `nodes` is the number of NUMA nodes, which have equal shares of processors and memory. netns: the namespace of QEMU's
    taps.
    """

    def __init__(self, trace, name, nics, qemu="qemu10", cpus=1, memory=256, incoming=None, iommu=False, kernel="",
                 directory=None, host=False, variant="", machine=(), nodes=1, netns=None):
        self.trace, self.name, self.nics, self.qemu = trace, name, nics, qemu
        self.cpus, self.memory, self.incoming, self.iommu, self.kernel = cpus, memory, incoming, iommu, kernel
        self.variant, self.machine, self.nodes, self.netns = variant, list(machine), nodes, netns
        # host: commands run with this machine's programs (its root, read-only), and what they write goes to memory.
        self.host = host
        if host:
            needed = {ROOT, CACHE, os.path.dirname(os.path.realpath(daemon_path()))}
            self.kernel = f"{kernel} lab.host={','.join(sorted(map(os.path.realpath, needed)))}".strip()
        self.dir = os.path.abspath(directory) if directory else tempfile.mkdtemp(prefix=f"heddle-guest-{name}-")
        self.process = None
        self.pid = 0
        self.agent = self.qmp = None
        self.buffer = b""
        self.ident = 0

    # -- the process -----------------------------------------------------------

    def command(self):
        machine = "q35" + (",memory-backend=mem0" if self.nodes == 1 else "") + (",kernel-irqchip=split" if self.iommu else "")
        memory = []
        for node in range(self.nodes):
            memory += ["-object", f"memory-backend-memfd,id=mem{node},size={self.memory // self.nodes}M,share=on"]
            if self.nodes > 1:
                share = self.cpus // self.nodes
                memory += ["-numa", f"node,nodeid={node},cpus={node * share}-{(node + 1) * share - 1},memdev=mem{node}"]
        words = ["ip", "netns", "exec", self.netns] if self.netns else []
        words += [os.path.join(CACHE, "bin", self.qemu), "-M", machine, "-accel", "tcg,thread=multi", "-cpu", "max",
                 "-smp", self.cpus, "-m", f"{self.memory}M", "-nodefaults", "-no-user-config", "-display", "none",
                 "-no-reboot", *memory,
                 "-kernel", f"{CACHE}/vmlinux{self.variant}", "-initrd", f"{CACHE}/initramfs{self.variant}", "-append",
                 f"console=ttyS0 quiet panic=-1 mitigations=off no_timer_check net.ifnames=0 {self.kernel}".strip(),
                 "-serial", f"file:{self.dir}/console.log", "-serial",
                 f"unix:{self.dir}/agent,server=on,wait=off", "-qmp", f"unix:{self.dir}/qmp,server=on,wait=off"]
        words += self.machine
        if self.iommu:
            words += ["-device", "intel-iommu,intremap=on,caching-mode=on,device-iotlb=on"]
        if self.host:
            words += ["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap",
                      "-device", "virtio-9p-pci,fsdev=host,mount_tag=host,bus=pcie.0"]
        for index, nic in enumerate(self.nics):
            words += nic.arguments(index, self.qemu)
        if self.incoming:
            words += ["-incoming", self.incoming]
        return [str(word) for word in words]

    def launch(self):
        """Starts the process; it runs before its guest does."""
        for name in ("agent", "qmp"):
            remove(f"{self.dir}/{name}")
        words = self.command()
        self.trace.note(f"guest {self.name}: {' '.join(words)}")
        with open(f"{self.dir}/qemu.log", "ab") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        self.pid = self.process.pid
        return self

    def attach(self, pid):
        """Connects to a guest that another process has started in this directory and that replies already."""
        self.pid = pid
        self.agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.agent.connect(f"{self.dir}/agent")
        # Replies to another client's numbers are not taken for ours.
        self.ident = time.monotonic_ns() % 1_000_000_000
        return self

    def start(self, timeout=60):
        """Boots, twice if need be; returns self when the guest replies to commands."""
        for attempt in (1, 2):
            self.launch()
            try:
                return self.wait_ready(timeout)
            except AssertionError as exc:
                self.trace.note(f"guest {self.name}: boot {attempt} failed: {exc}\n{self.console()[-800:]}")
                self.kill()
                if attempt == 2:
                    raise
        raise AssertionError("not reached")

    def wait_ready(self, timeout=60):
        """Waits until /init replies. The time covers the wait for the vhost-user back end, which QEMU does
        first."""
        began = time.monotonic()
        end = began + timeout
        while self.agent is None:
            self._check(end, "QEMU has not opened its sockets (does the switch serve the vhost-user port?)")
            agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                agent.connect(f"{self.dir}/agent")
                self.agent = agent
            except (FileNotFoundError, ConnectionRefusedError):
                agent.close()
                time.sleep(0.05)
        self.buffer = b""
        if not self.incoming:
            while b"=0 0 0\n" not in self.buffer:
                self._check(end, "no boot message")
                self._receive(0.2)
            self.buffer = b""
            self.trace.note(f"guest {self.name}: answers after {time.monotonic() - began:.1f} s")
        return self

    def _check(self, end, what):
        if self.process.poll() is not None:
            raise AssertionError(f"QEMU ended with status {self.process.returncode}: {self.log()[-400:]}")
        if time.monotonic() > end:
            raise AssertionError(f"guest {self.name}: {what} in time; console: {self.console()[-300:]}")

    def alive(self):
        if self.process is None:
            return self.pid != 0 and process_alive(self.pid)
        return self.process.poll() is None

    def kill(self, sig=signal.SIGKILL):
        """Ends QEMU by this signal; the guest can be launched again."""
        for closing in (self.agent, self.qmp):
            if closing:
                closing.close()
        self.agent = self.qmp = None
        if self.process:
            if self.process.poll() is None:
                self.process.send_signal(sig)
                try:
                    self.process.wait(10)
                except subprocess.TimeoutExpired:
                    self.process.kill()
            self.process.wait(10)
            self.process = None
        self.pid = 0

    def close(self):
        self.kill()
        self.trace.note(f"guest {self.name}: console\n{self.console()[-3000:]}\nqemu: {self.log()[-1500:]}")
        for name in os.listdir(self.dir):
            remove(os.path.join(self.dir, name))
        with contextlib.suppress(OSError):
            os.rmdir(self.dir)

    def console(self):
        return _read(f"{self.dir}/console.log")

    def log(self):
        return _read(f"{self.dir}/qemu.log")

    def control(self, command, **arguments):
        """A QMP command."""
        if self.qmp is None:
            self.qmp = Qmp(f"{self.dir}/qmp")
        return self.qmp.call(command, **arguments)

    # -- commands inside the guest ---------------------------------------------

    def run(self, command, timeout=30, check=True):
        """Runs a shell command inside, returns its output; requires status 0 unless check=False."""
        self.ident += 1
        self.agent.sendall(f"{self.ident} {command}\n".encode())
        end = time.monotonic() + timeout
        head = f"={self.ident} ".encode()
        began = time.monotonic()
        while True:
            line, newline, rest = self.buffer.partition(b"\n")
            if newline and not line.startswith(head):
                self.buffer = rest  # the late reply of a command that was given up
            elif newline:
                _, status, length = line.split()
                if len(rest) >= int(length):
                    output = rest[:int(length)].decode(errors="replace")
                    self.buffer = rest[int(length):]
                    break
            if time.monotonic() > end or not self.alive():
                self.trace.note(f"{self.name}# {command}\n  gave up; console: {self.console()[-500:]}")
                raise CommandError(f"guest {self.name}: no answer within {timeout} s to: {command}")
            self._receive(0.2)
        self.trace.note(f"{self.name}# {command}   [{int(status)}, {time.monotonic() - began:.2f} s]\n"
                        f"{output[:self.trace.LIMIT]}".rstrip())
        if check and int(status) != 0:
            raise CommandError(f"guest {self.name}: status {int(status)}: {command}\n{output}")
        return output

    def _receive(self, seconds):
        self.agent.settimeout(seconds)
        try:
            data = self.agent.recv(65536)
        except TimeoutError:
            return
        if not data:
            raise CommandError(f"guest {self.name}: QEMU closed the agent's line: {self.log()[-400:]}")
        self.buffer += data

    def address(self, cidr, device="eth0"):
        self.run(f"ip addr add {cidr} dev {device} && ip link set {device} up")

    def carrier_changes(self, device="eth0"):
        return int(self.run(f"cat /sys/class/net/{device}/carrier_changes"))


def _read(path):
    try:
        with open(path, errors="replace") as file:
            return file.read()
    except FileNotFoundError:
        return ""
