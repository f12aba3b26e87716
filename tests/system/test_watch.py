#!/usr/bin/env python3
"""`heddle drops` and `heddle capture`: who decided, an example, the trace that shows it; packets that tcpdump reads."""

import json
import os
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab.runner import Skip, main
from lab.shell import wait_for
from lab.vhost import heddle_path

TELNET = "in_port(p1),eth(src=02:00:00:00:00:01,dst=02:00:00:00:00:02),eth_type(0x0800),ipv4(src=10.0.0.1,dst=10.0.0.2,proto=6,ttl=64),tcp(src=4000,dst=23)"
WEB = TELNET.replace("dst=23", "dst=80")


def switch(lab):
    if not os.access(heddle_path(), os.X_OK):
        raise Skip(f"{heddle_path()} is not built")
    sw = lab.switch("--enable-dummy=override", "--disable-system-route", netns=False)
    if sw.is_reference:
        raise Skip("the reference has no such commands")
    sw.vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=dummy", "fail_mode=secure")
    for name in ("p1", "p2"):
        sw.vsctl("add-port", "br0", name, "--", "set", "interface", name, "type=dummy-pmd")
    sw.ofctl("add-flow", "br0", "table=0,priority=100,ip,actions=goto_table:1", check=False)
    sw.ofctl("-O", "OpenFlow13", "add-flow", "br0", "table=0,priority=100,ip,actions=goto_table:1")
    sw.ofctl("-O", "OpenFlow13", "add-flow", "br0", "table=1,priority=200,cookie=0x77,tcp,tp_dst=23,actions=drop")
    sw.ofctl("-O", "OpenFlow13", "add-flow", "br0", "table=1,priority=1,ip,actions=output:p2")
    return sw


def heddle(sw, *args, check=True):
    began = time.monotonic()
    done = subprocess.run([heddle_path(), args[0], "--target", sw.ctl, *args[1:]], capture_output=True, timeout=60, check=False)
    sw.trace.note(f"heddle {args}: {done.returncode} in {time.monotonic() - began:.3f} s\n{done.stdout[:2000]}{done.stderr}")
    assert not check or done.returncode == 0, done
    return done


def receive(sw, flow, n=1):
    for _ in range(n):
        sw.appctl("netdev-dummy/receive", "p1", flow)


def scenario_who_decided(lab):
    sw = switch(lab)
    assert b"nothing" in heddle(sw, "drops").stdout
    receive(sw, TELNET, 3)

    def example():
        told = json.loads(heddle(sw, "drops", "--json").stdout)
        return told if told["examples"] else None
    told = wait_for("an example", example)
    assert told["totals"]["drop_action_of_pipeline"] == 3, told
    found = [e for e in told["examples"] if e["reason"] == "drop_action_of_pipeline"]
    assert len(found) == 1, told
    one = found[0]
    assert (one["port"], one["bridge"], one["table"], one["cookie"]) == ("p1", "br0", "1", "0x77"), one
    assert "tp_dst=23" in one["packet"] and "nw_src=10.0.0.1" in one["packet"], one
    # The command that it gives shows the same.
    words = shlex.split(one["trace"])
    assert words[0] == "ovs-appctl", words
    text = sw.appctl(*words[1:])
    assert "cookie 0x77" in text and "Datapath actions: drop" in text, text
    plain = heddle(sw, "drops").stdout.decode()
    assert "bridge br0, table 1, cookie 0x77" in plain and "drop_action_of_pipeline at p1" in plain, plain
    # Other ports have no example, and unknown ports are an error.
    assert json.loads(heddle(sw, "drops", "--json", "--port", "p2").stdout)["examples"] == []
    wrong = heddle(sw, "drops", "--port", "none", check=False)
    assert wrong.returncode == 1 and b"none: no such port" in wrong.stderr, wrong


def scenario_on_its_way_to(lab):
    """A drop at an output names the output: a bridge's own device is down, and gets a copy of flooded
    packets."""
    if not os.access(heddle_path(), os.X_OK):
        raise Skip(f"{heddle_path()} is not built")
    sw = lab.switch()
    lab.bridge(sw)
    lab.net.ip(sw.netns, "link", "set", "br0", "down")
    red = lab.internal_pod(sw, "red", "10.0.0.1/24")

    def example():
        lab.net.ping(red, "10.0.0.2", count=1, lossless=False)
        told = json.loads(heddle(sw, "drops", "--json").stdout)["examples"]
        return [e for e in told if e["reason"] == "datapath_drop_tx_down" and e["port"] == "red0"]
    one = wait_for("an example", example, 20)[0]
    assert (one["to"], one["bridge"]) == ("br0", "br0") and one["rule"], one
    plain = heddle(sw, "drops", "--port", "red0").stdout.decode()
    assert "  to      br0, whose device is down" in plain and "DROPPED OF WHAT CAME IN BY red0" in plain, plain
    # Without --port, these ordinary copies are one line, unless --all is given.
    plain = heddle(sw, "drops").stdout.decode()
    assert "copies for bridges' own devices that are down" in plain and "whose device is down" not in plain, plain
    assert "whose device is down" in heddle(sw, "drops", "--all").stdout.decode()
    # The examples' counts are reset; coverage counters are not.
    before = int(sw.appctl("coverage/read-counter", "datapath_drop_tx_down"))
    assert before > 0

    def is_reset():
        assert not heddle(sw, "drops", "--reset").stdout
        told = json.loads(heddle(sw, "drops", "--json").stdout)
        return told["examples"] == [] and told["totals"] == {}
    wait_for("a reset between two ARP requests", is_reset, 20)
    again = wait_for("an example after the reset", example, 20)[0]
    told = json.loads(heddle(sw, "drops", "--json").stdout)
    assert again["packets"] <= told["totals"]["datapath_drop_tx_down"] < before + again["packets"] + 20, told
    assert int(sw.appctl("coverage/read-counter", "datapath_drop_tx_down")) > before
    # A port that is deleted has no examples any more.
    sw.vsctl("del-port", "red0")
    wait_for("no examples of a deleted port", lambda: json.loads(heddle(sw, "drops", "--json").stdout)["examples"] == [])


def scenario_a_rare_drop_beside_a_flood(lab):
    """Each port has examples of its own, whatever the drops of other ports are."""
    sw = switch(lab)
    for _ in range(50):
        receive(sw, TELNET)
    sw.appctl("netdev-dummy/receive", "p2", TELNET.replace("p1", "p2"))

    def both():
        told = json.loads(heddle(sw, "drops", "--json").stdout)
        return {e["port"]: e for e in told["examples"]} if len(told["examples"]) >= 2 else None
    found = wait_for("examples of both ports", both)
    assert found["p2"]["packets"] == 1 and 1 <= found["p1"]["packets"] <= 50, found


def scenario_followed(lab):
    sw = switch(lab)
    proc = subprocess.Popen([heddle_path(), "drops", "--target", sw.ctl, "--follow"], bufsize=0, stdout=subprocess.PIPE)
    lab.cleanups.append(proc.kill)
    end = time.monotonic() + 30
    seen = ""
    os.set_blocking(proc.stdout.fileno(), False)
    while "cookie 0x77" not in seen and time.monotonic() < end:
        receive(sw, TELNET)
        time.sleep(0.2)
        seen += (proc.stdout.read() or b"").decode()
    assert "drop_action_of_pipeline at p1" in seen and "cookie 0x77" in seen, seen


def tcpdump(data, *args):
    out = subprocess.run(["tcpdump", "-nn", "-r", "-", *args], input=data, capture_output=True, timeout=60, check=False)
    assert out.returncode == 0, out
    return out.stdout.decode()


def blocks(data):
    """Types and bodies of pcapng's blocks."""
    found = []
    while data:
        kind, size = struct.unpack("<II", data[:8])
        assert size % 4 == 0 and size == struct.unpack("<I", data[size - 4:size])[0], (kind, size)
        found.append((kind, data[8:size - 4]))
        data = data[size:]
    return found


class Capture:
    """A running capture; end() returns its file and its messages."""

    def __init__(self, lab, sw, *args):
        self.proc = subprocess.Popen([heddle_path(), "capture", "--target", sw.ctl, "-w", "-", *args], bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        lab.cleanups.append(self.proc.kill)
        # The section's header is written when the switch has accepted the capture.
        self.head = self.proc.stdout.read(8)

    def end(self):
        out, err = self.proc.communicate(timeout=60)
        assert self.proc.returncode == 0, err
        return self.head + out, err.decode()


def scenario_captured(lab):
    sw = switch(lab)
    receive(sw, WEB)
    capture = Capture(lab, sw, "--port", "p2", "--count", "2")
    receive(sw, WEB)
    sw.appctl("netdev-dummy/receive", "p2", TELNET.replace("p1", "p2"))
    data, said = capture.end()
    assert "2 packets captured, 0 missed" in said, said
    text = tcpdump(data)
    assert "10.0.0.1.4000 > 10.0.0.2.80" in text and "10.0.0.1.4000 > 10.0.0.2.23" in text, text
    kinds = [kind for kind, _ in blocks(data)]
    assert kinds == [0x0a0d0d0a, 1, 6, 6, 5], kinds
    # Sent, then received.
    assert [struct.unpack("<I", body[body.index(b"\x02\x00\x04\x00") + 4:][:4])[0] for kind, body in blocks(data) if kind == 6] == [2, 1]


def scenario_drops_captured(lab):
    sw = switch(lab)
    capture = Capture(lab, sw, "--drop", "any", "--count", "1")
    receive(sw, WEB)
    receive(sw, TELNET)
    data, _ = capture.end()
    assert "10.0.0.2.23" in tcpdump(data)
    packet = next(body for kind, body in blocks(data) if kind == 6)
    assert b"drop_action_of_pipeline; " in packet and b"tcp(src=4000,dst=23)" in packet, packet
    capture = Capture(lab, sw, "--filter", "tcp,tp_dst=80", "--seconds", "2")
    receive(sw, WEB)
    receive(sw, TELNET)
    data, said = capture.end()
    assert "1 packet captured" in said and "1 did not match the filter" in said, said
    assert "10.0.0.2.80" in tcpdump(data)


def scenario_mistakes(lab):
    sw = switch(lab)
    for args, why in ((["--port", "none"], "no such port"), (["--drop", "nonsense"], "no reason for a drop"), (["--filter", "nonsense"], "nonsense"),
                      (["-w", "/no/such/directory/file"], "/no/such/directory/file")):
        done = heddle(sw, "capture", *(args if "-w" in args else ["-w", "-", *args]), check=False)
        assert done.returncode != 0 and why in done.stderr.decode(), (args, done)
    first = Capture(lab, sw)
    done = heddle(sw, "capture", "-w", "-", check=False)
    assert done.returncode == 1 and b"another capture is under way" in done.stderr, done
    first.proc.kill()
    first.proc.wait()
    # A capture without a reader ends.
    wait_for("the end of the capture that was killed", lambda: heddle(sw, "capture", "-w", "-", "--seconds", "0", check=False).returncode == 0, 30)


def scenario_ends(lab):
    """However a capture ends, the next one can begin at once, and its file is whole; a full disk is
    reported."""
    sw = switch(lab)
    receive(sw, WEB)
    for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        capture = Capture(lab, sw, "--port", "p2")
        receive(sw, WEB)
        capture.proc.send_signal(sig)
        # `timeout` sends the signal twice.
        capture.proc.send_signal(sig)
        data, said = capture.end()
        assert blocks(data)[-1][0] == 5 and "captured" in said, (sig, said)
    place = tempfile.mkdtemp(prefix="heddle-full-")
    lab.cleanups.append(lambda: os.rmdir(place))
    lab.trace.run("mount", "-t", "tmpfs", "-o", "size=16k", "none", place)
    lab.cleanups.append(lambda: lab.trace.run("umount", place))
    full = subprocess.Popen([heddle_path(), "capture", "--target", sw.ctl, "-w", f"{place}/x.pcapng"], stderr=subprocess.PIPE, text=True)
    lab.cleanups.append(full.kill)
    end = time.monotonic() + 60
    while full.poll() is None and time.monotonic() < end:
        receive(sw, WEB, 20)
    said = full.stderr.read().splitlines()
    assert full.returncode == 1 and f"{place}/x.pcapng: No space left on device" in said[-1], said
    # A pipe without a reader: the program waits for one, and ends at a signal.
    os.mkfifo(f"{sw.dir}/pipe")
    waits = subprocess.Popen([heddle_path(), "capture", "--target", sw.ctl, "-w", f"{sw.dir}/pipe"], stderr=subprocess.PIPE, text=True)
    lab.cleanups.append(waits.kill)
    time.sleep(0.3)
    assert waits.poll() is None
    waits.terminate()
    waits.wait(30)
    # An existing file stays if the switch refuses.
    kept = f"{sw.dir}/kept.pcapng"
    assert heddle(sw, "capture", "-w", kept, "--seconds", "0").returncode == 0
    size = os.path.getsize(kept)
    assert size > 0 and heddle(sw, "capture", "-w", kept, "--filter", "nonsense", check=False).returncode == 1
    assert os.path.getsize(kept) == size
    # And nothing is left where nothing was.
    new = f"{sw.dir}/new.pcapng"
    assert heddle(sw, "capture", "-w", new, "--drop", "nonsense", check=False).returncode == 1 and not os.path.exists(new)


def scenario_nobody_reads(lab):
    """A reader that has read enough closes the pipe, which is no fault; a full disk is one, reported in one
    line."""
    sw = switch(lab)
    receive(sw, TELNET)
    for args in (("drops",), ("drops", "--json"), ("top", "--once", "--interval", "0.1"), ("top", "--json", "--interval", "0.1"), ("offload",)):
        argv = [heddle_path(), args[0], "--target", sw.ctl, *args[1:]]
        ours, theirs = os.pipe()
        os.close(ours)
        try:
            done = subprocess.run(argv, stdout=theirs, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
        finally:
            os.close(theirs)
        assert done.returncode == 0 and done.stderr == "", (args, done)
        with open("/dev/full", "w") as full:
            done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, timeout=30, check=False)
        assert done.returncode == 1 and done.stderr == "heddle: standard output: No space left on device (os error 28)\n", (args, done)


if __name__ == "__main__":
    main()
