#!/usr/bin/env python3
"""Attacks of vhost-user front ends on a switch: announce guests, break the protocol, die at any moment. Other
guests continue."""

import fcntl
import os
import random
import resource
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from lab.frontend import CONFIGURE_MEM_SLOTS, GUEST, MQ, MTU, RARP, REPLY_ACK, SIZE, USER, Front
from lab.measure import Pings
from lab.runner import limit, main
from lab.shell import wait_for
from lab.vhost import Transfer
from test_vhost import add_client, client_port, status, switch, wait_status


def pinging(lab, *args):
    """Pings that end with the scenario, however it ends."""
    pings = Pings(lab.net, *args)
    lab.cleanups.append(lambda: (pings.process.kill(), pings.process.wait(60)))
    return pings


def neighbours(lab, sw):
    """Two pods whose pings must not suffer."""
    pod = lab.veth_pod(sw, "pod", "10.1.0.100/24")
    lab.veth_pod(sw, "other", "10.1.0.101/24")
    lab.net.ping(pod, "10.1.0.101")
    return pinging(lab, pod, "10.1.0.101")


def unharmed(pings, worst_ms, lossy=False):
    """No ping is lost (with `lossy`, some are, but never for long). Few are late: those that were under way
    when the whole machine stood still."""
    # A scenario may be over before there are enough to judge by.
    wait_for("enough pings", lambda: len(pings.answers()) > 10)
    sent, lost, silence = pings.stop()
    late = pings.late(worst_ms)
    assert sent > 10 and lost <= lossy * sent // 5 and late < 10, f"{sent} pings, {lost} lost, {late} late"
    assert not pings.silent(worst_ms + 1000), f"none answered for {silence:.0f} ms"


def raw_port(lab, sw, name, mode="client"):
    """A port, and the front end for it, not connected yet."""
    if mode == "client":
        front = Front(f"{sw.dir}/{name}.sock")
        add_client(sw, name, front.path)
        return front
    sw.vsctl("add-port", "br0", name, "--", "set", "interface", name, "type=dpdkvhostuser")
    wait_for("the socket", lambda: os.path.exists(f"{sw.dir}/{name}"))
    return Front(f"{sw.dir}/{name}", listen=False)


def scenario_an_announcement_is_seen_on_the_other_port(lab):
    """SEND_RARP: the network learns where a migrated guest is."""
    sw = switch(lab)
    pod = lab.veth_pod(sw, "pod", "10.1.0.100/24")
    listening = lab.net.socket(pod, lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x8035)))
    listening.settimeout(60)
    front = raw_port(lab, sw, "vm")
    front.connect().negotiate(MQ | RARP | REPLY_ACK).memory().rings()
    sw.wait_column("interface", "vm", "link_state", "up")
    mac = bytes.fromhex("525400abcdef")
    assert front.acknowledged(19, mac + b"\0\0")
    frame = listening.recv(200)
    assert frame[:14] == b"\xff" * 6 + mac + b"\x80\x35" and frame[20:28] == b"\0\x03" + mac, frame.hex()
    wait_for("the address is learned", lambda: "52:54:00:ab:cd:ef" in sw.appctl("fdb/show", "br0"))


def scenario_what_is_not_possible_is_refused(lab):
    """Postcopy, an MTU beyond the limit, regions beyond the slots or without sense: an error each, and the
    session continues."""
    sw = switch(lab)
    pings = neighbours(lab, sw)
    front = raw_port(lab, sw, "vm")
    front.connect().negotiate(MQ | MTU | REPLY_ACK | CONFIGURE_MEM_SLOTS).memory()
    assert front.ask(15) & (1 << 8) == 0, "postcopy (PAGEFAULT) is not offered"
    assert not front.acknowledged(29), "POSTCOPY_LISTEN"
    for mtu, want in ((1500, True), (67, False), (65536, False), (1 << 40, False), (9000, True)):
        assert front.acknowledged(20, struct.pack("<Q", mtu)) == want, mtu
    wait_status(sw, "vm", "mtu", "9000")
    slots = front.ask(36)
    region = struct.Struct("<QQQQQ")  # padding, guest, size, user, offset
    for i in range(1, slots):
        assert front.acknowledged(37, region.pack(0, GUEST + i * SIZE, 4096, USER + i * SIZE, 0), [front.fd]), i
    for what, guest, size, user, offset in (
            ("beyond the slots", 1 << 40, 4096, 1 << 41, 0),
            ("empty", 1 << 40, 0, 1 << 41, 0),
            ("overlapping", GUEST + 4096, 4096, 1 << 41, 0),
            ("wrapping", (1 << 64) - 4096, 8192, 1 << 41, 0),
            ("beyond its file", 1 << 40, 4096, 1 << 41, SIZE)):
        assert not front.acknowledged(37, region.pack(0, guest, size, user, offset), [front.fd]), what
    assert front.acknowledged(38, region.pack(0, GUEST + SIZE, 4096, USER + SIZE, 0))
    for what, guest, size, user, offset in (
            ("empty", 1 << 40, 0, 1 << 41, 0),
            ("overlapping", GUEST + 4096, 4096, 1 << 41, 0),
            ("wrapping", (1 << 64) - 4096, 8192, 1 << 41, 0),
            ("the last byte", (1 << 64) - 4096, 4096, 1 << 41, 1),
            ("beyond its file", 1 << 40, 4096, 1 << 41, SIZE)):
        assert not front.acknowledged(37, region.pack(0, guest, size, user, offset), [front.fd]), what
    front.rings()
    sw.wait_column("interface", "vm", "link_state", "up")
    # The whole table at once: a bad one ends the session if no reply was requested.
    front.tell(5, struct.pack("<IIQQQQQQQQ", 2, 0, GUEST, SIZE, USER, 0, GUEST + 4096, SIZE, USER + SIZE, 0), [front.fd] * 2)
    assert front.is_closed()
    wait_status(sw, "vm", "status", "disconnected")
    assert "SET_MEM_TABLE" in status(sw, "vm")["disconnect_reason"]
    unharmed(pings, 1000)


def transmit_pages(front, kick, first, pages, done=0):
    """Transmits a packet out of each page; returns how many the switch took."""
    base, used = 0x10000, done
    for at in range(first, first + pages, 256):
        for i in range(256):
            front.mem[base + 16 * i:base + 16 * i + 16] = struct.pack("<QIHH", GUEST + (at + i) * 4096, 76, 0, 0)
        front.mem[base + 0x1004:base + 0x1004 + 512] = struct.pack("<256H", *range(256))
        done += 256
        front.available(1, done & 0xffff)
        os.eventfd_write(kick, 1)
        end = time.monotonic() + 1
        while front.used(1) != done & 0xffff:
            if time.monotonic() > end:
                return used
            time.sleep(0.0005)
        used = done
    return used


def resident(sw):
    with open(f"/proc/{sw.pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssShmem:"))


@limit(200)
def scenario_memory_that_nobody_wrote_to(lab):
    """A peer transmits all of an empty file: its queue stops, others continue, the switch is charged little."""
    sw = switch(lab)
    pings = neighbours(lab, sw)
    size, limit_kb = 1 << 30, 64 << 10
    for name, written in (("holes", False), ("gone", True)):
        front = raw_port(lab, sw, name)
        front.connect().negotiate().memory(size)
        kick = front.rings()
        sw.wait_column("interface", name, "link_state", "up")
        first, pages, took = 256, 40_000, 0
        before = resident(sw)
        if written:
            # Written to and transmitted; then the file is cut there and made longer again, in one moment.
            front.mem[first * 4096:(first + pages) * 4096] = b"\1" * (pages * 4096)
            took = transmit_pages(front, kick, first, 1024)
            assert took == 1024, took
            used = front.mem[0x10000:0x20000]
            os.ftruncate(front.fd, 0x20000)
            os.ftruncate(front.fd, size)
            front.mem[0x10000:0x20000] = used
        took = transmit_pages(front, kick, first, pages, took)
        assert took < 24_000, took
        grown = resident(sw) - before
        assert grown < limit_kb, f"{grown} kB"
        wait_status(sw, name, "vring_1_error", "the guest transmits memory that it never wrote to")
        front.close()
        front.mem.close()
        os.close(front.fd)
    unharmed(pings, 1000)


def scenario_a_call_descriptor_that_blocks_holds_nobody(lab):
    """The guest's notification is made to block, which ends the session: a full counter, a full pipe. Other kinds are refused."""
    sw = switch(lab)
    pings = neighbours(lab, sw)
    front = raw_port(lab, sw, "vm")
    sender = lab.net.socket(f"{lab.net.stem}-pod", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW))
    sender.bind(("eth0", 0))
    counter = os.eventfd(0, os.EFD_NONBLOCK)
    os.eventfd_write(counter, (1 << 64) - 2)
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETFL, os.O_NONBLOCK)
    try:
        while True:
            os.write(writer, b"x" * 4096)
    except BlockingIOError:
        pass
    for call in (counter, writer):
        front.connect().negotiate().memory()
        front.ring(0, call)
        front.ring(1)
        front.offer_buffers()
        sw.wait_column("interface", "vm", "link_state", "up")
        wait_status(sw, "vm", "status", "connected")
        fcntl.fcntl(call, fcntl.F_SETFL, 0)

        def ended():
            for _ in range(10):
                sender.send(b"\xff" * 6 + bytes.fromhex("020000000001") + b"\x88\xb5" + b"x" * 50)
            now = status(sw, "vm")
            return now.get("status") == "disconnected" and "made the switch wait" in now.get("disconnect_reason", "")
        wait_for("the session's end", ended, interval=0.2)
        assert front.is_closed()
        front.close()
    assert "made its writer wait" in sw.log()
    front.connect().negotiate().memory()
    with open("/etc/hostname") as file:
        front.tell(13, struct.pack("<Q", 0), [file.fileno()])
        assert front.is_closed()
    wait_status(sw, "vm", "disconnect_reason", lambda text: text and "neither an eventfd nor a pipe" in text)
    unharmed(pings, 1000)
    os.close(reader)


@limit(450)
def scenario_descriptors_run_out(lab):
    """The new front end is not served, with the reason in the database; existing ones continue. When there
    are descriptors again, it is served."""
    sw = switch(lab)
    soft, hard = resource.prlimit(sw.pid, resource.RLIMIT_NOFILE)
    assert soft == min(hard, 1 << 20), f"the soft limit is raised to the hard one: {soft} of {hard}"
    a = client_port(lab, sw, "vm1", "10.1.0.1/24")
    b = client_port(lab, sw, "vm2", "10.1.0.2/24")
    wait_status(sw, "vm1", "num_of_vrings", "2")
    wait_status(sw, "vm2", "num_of_vrings", "2")
    run = Transfer(lab, a.ns, b.ns, "10.1.0.2", 60)
    new = client_port(lab, sw, "vm3", "10.1.0.3/24")
    wait_status(sw, "vm3", "num_of_vrings", "2")
    new.stop()
    wait_status(sw, "vm3", "status", "disconnected")
    # The next descriptor's number is beyond the limit in any case; there is room for one or two that were
    # open only now.
    used = {int(name) for name in os.listdir(f"/proc/{sw.pid}/fd")}
    free = next(number for number in range(len(used) + 1) if number not in used)
    resource.prlimit(sw.pid, resource.RLIMIT_NOFILE, (free, hard))
    new.start()
    wait_for("the reason in the database", lambda: "descriptors" in sw.get("interface", "vm3", "error"))
    assert "no file descriptors left" in sw.log()
    # Beside a transfer that fills the queues a ping may be lost.
    assert lab.net.ping(a.ns, "10.1.0.2", lossless=False) > 0
    resource.prlimit(sw.pid, resource.RLIMIT_NOFILE, (hard, hard))
    wait_status(sw, "vm3", "num_of_vrings", "2")
    sw.wait_column("interface", "vm3", "error", "[]")
    run.finish()
    lab.net.ping(a.ns, "10.1.0.3")


@limit(450)
def scenario_front_ends_of_all_kinds(lab):
    """Thousands of connections, one that never finishes a message, two at one socket, memory cut under running rings."""
    sw = switch(lab)
    pings = neighbours(lab, sw)
    front = raw_port(lab, sw, "vm", "server")
    for i in range(2000):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(front.path)  # waits while the queue is full: the switch accepts a limited number a second
            s.settimeout(60)
            try:
                if i % 3 == 0:
                    s.send(b"\1\0\0\0")
                if i % 7 == 0:
                    s.send(os.urandom(40))
            except BrokenPipeError:
                pass  # turned away already, in the pause after a fault
    before = len(os.listdir(f"/proc/{sw.pid}/fd"))
    # A front end with a fault is accepted again after a pause of 16 s at most.
    def served():
        try:
            front.connect().negotiate().memory().rings()
            return True
        except (ConnectionError, TimeoutError):
            front.close()
            time.sleep(0.2)
            return False
    wait_for("a decent front end is served", served, 120)
    sw.wait_column("interface", "vm", "link_state", "up")
    second = Front(front.path, listen=False).connect()
    assert second.is_closed(), "a second front end is turned away"
    assert front.ask(1), "the first one stays"
    front.close()
    wait_status(sw, "vm", "status", "disconnected")
    wait_for("descriptors are given back", lambda: len(os.listdir(f"/proc/{sw.pid}/fd")) <= before + 4)
    # Half a message, and silence.
    wait_for("it is served again", lambda: served() or None, 120)
    front.sock.sendall(struct.pack("<III", 5, 1, 40) + b"half")
    assert front.is_closed()
    wait_status(sw, "vm", "disconnect_reason", lambda text: text and "never finished" in text)
    # The memory's file is cut while the switch uses it.
    wait_for("and again", lambda: served() or None, 120)
    sw.wait_column("interface", "vm", "link_state", "up")
    os.ftruncate(front.fd, 0)
    os.eventfd_write(front.events[1], 1)
    assert front.is_closed()
    wait_status(sw, "vm", "disconnect_reason", lambda text: text and "cut the file" in text)
    unharmed(pings, 1000)


@limit(450)
def scenario_guests_that_die_at_random(lab):
    """Six guests under traffic are killed and started again at random; two others and the daemon keep
    working."""
    seconds = float(os.environ.get("CHAOS_SECONDS", 30))
    seed = int(os.environ.get("CHAOS_SEED", 1))
    lab.trace.note(f"CHAOS_SEED={seed}")
    dice = random.Random(seed)
    sw = switch(lab)
    a = client_port(lab, sw, "vm1", "10.1.0.1/24")
    b = client_port(lab, sw, "vm2", "10.1.0.2/24", ["--packed"])
    kinds = ([], ["--packed"], ["--queues", "2"], ["--tso", "off"], ["--csum", "off", "--packed"], ["--mergeable", "off"])
    mortal = [client_port(lab, sw, f"m{i}", f"10.1.0.{10 + i}/24", kind) for i, kind in enumerate(kinds)]
    pings = pinging(lab, a.ns, "10.1.0.2")
    floods = [pinging(lab, a.ns, f"10.1.0.{10 + i}", 0.005) for i in range(len(mortal))]
    transfers = deaths = 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run = Transfer(lab, a.ns, b.ns, "10.1.0.2", 5)
        for _ in range(dice.randrange(1, 5)):
            guest = dice.choice(mortal)
            guest.stop()
            deaths += 1
            time.sleep(dice.random() / 4)
            guest.start()
            time.sleep(dice.random() / 4)
        run.finish()
        transfers += 1
    for flood in floods:
        flood.stop()
    for i, guest in enumerate(mortal):
        wait_for(f"m{i} answers", lambda i=i: lab.net.ping(a.ns, f"10.1.0.{10 + i}", count=1, lossless=False) == 1)
    unharmed(pings, 2000, lossy=True)
    assert transfers >= 1 and "panicked" not in sw.log()
    lab.trace.note(f"{deaths} deaths, {transfers} transfers")


if __name__ == "__main__":
    main()
