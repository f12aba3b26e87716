#!/usr/bin/env python3
"""Malformed OpenFlow, malformed control messages, malformed rows and nonsense frames: an error or a drop, never an end."""

import json
import random
import socket
import struct

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from lab import frames, openflow
from lab.net import receive
from lab.openflow import V10, V13, V14, V15, Connection
from lab.runner import main
from lab.shell import wait_for

# OpenFlow 1.3.5 section 7.4.4: error types
HELLO_FAILED, BAD_REQUEST, BAD_ACTION, BAD_INSTRUCTION, BAD_MATCH, FLOW_MOD_FAILED = 0, 1, 2, 3, 4, 5
ANY32 = b"\xff" * 4


def dice(lab):
    """The same seed each time, so that a result depends on the change alone; SEED=TEXT gives others."""
    seed = os.environ.get("SEED", "one")
    lab.trace.note(f"SEED={seed}")
    return random.Random(seed)


def pad8(data):
    return data + b"\0" * (-len(data) % 8)


def oxm_match(fields=b"", length=None):
    head = struct.pack("!HH", 1, 4 + len(fields) if length is None else length)
    return pad8(head + fields)


def flow_mod(match=None, instructions=b"", table=0, command=0, out_port=0xffffffff, flags=0, priority=1):
    return struct.pack("!QQBBHHHIIIHH", 0, 0, table, command, 0, 0, priority, 0xffffffff, out_port, 0xffffffff, flags,
                       0) + (oxm_match() if match is None else match) + instructions


def apply_actions(actions):
    return struct.pack("!HHI", 4, 8 + len(actions), 0) + actions


def output(port, length=16):
    return struct.pack("!HHIH6x", 0, length, port, 0xffff)


def scenario_openflow_errors(lab):
    """Each wrong message gets the type and code that the specification gives, and the connection lives."""
    sw = lab.switch()
    lab.bridge(sw, "br0", "fail_mode=secure")
    conn = Connection.to_bridge(sw, "br0", V13)

    def refused(name, want, kind, body=b"", **kw):
        got = conn.error_for(kind, 0x100, body, **kw)
        assert got == want, f"{name}: error {got} instead of {want}"
        conn.echo()
        assert not sw.flows("br0"), f"{name}: a flow was added all the same"
    oxm = struct.pack
    refused("unknown message type", (BAD_REQUEST, 1), 99)
    refused("message of another version", (BAD_REQUEST, 0), openflow.FEATURES_REQUEST, version=V10)
    refused("flow mod that is cut off", (BAD_REQUEST, 6), openflow.FLOW_MOD, flow_mod()[:20])
    refused("features request that is too long", (BAD_REQUEST, 6), openflow.FEATURES_REQUEST, b"\0" * 8)
    refused("unknown statistics type", (BAD_REQUEST, 2), 18, struct.pack("!HH4x", 999, 0))
    refused("flow statistics that are cut off", (BAD_REQUEST, 6), 18, struct.pack("!HH4x", 1, 0) + b"\0" * 4)
    refused("unknown experimenter", (BAD_REQUEST, 3), 4, struct.pack("!II", 0x00123456, 1))
    refused("unknown experimenter type", (BAD_REQUEST, 4), 4, struct.pack("!II", 0x00002320, 0x7777))
    refused("match longer than the message", (BAD_MATCH, 1), openflow.FLOW_MOD, flow_mod(oxm_match(length=200)))
    refused("unknown match type", (BAD_MATCH, 0), openflow.FLOW_MOD, flow_mod(struct.pack("!HH4x", 7, 4)))
    refused("field that is cut off", (BAD_MATCH, 1), openflow.FLOW_MOD,
            flow_mod(oxm_match(oxm("!HBBB", 0x8000, 3 << 1, 6, 1))))
    refused("unknown field", (BAD_MATCH, 6), openflow.FLOW_MOD,
            flow_mod(oxm_match(oxm("!HBBI", 0x8000, 120 << 1, 4, 1))))
    refused("field of a wrong length", (BAD_MATCH, 6), openflow.FLOW_MOD,
            flow_mod(oxm_match(oxm("!HBBI", 0x8000, 5 << 1, 4, 1))))
    refused("missing prerequisite", (BAD_MATCH, 9), openflow.FLOW_MOD,
            flow_mod(oxm_match(oxm("!HBBH", 0x8000, 14 << 1, 2, 80))))
    refused("field given twice", (BAD_MATCH, 10), openflow.FLOW_MOD,
            flow_mod(oxm_match(oxm("!HBBH", 0x8000, 5 << 1, 2, 0x800) * 2)))
    refused("value outside its mask", (BAD_MATCH, 5), openflow.FLOW_MOD,
            flow_mod(oxm_match(oxm("!HBBQQ", 0x8000, 2 << 1 | 1, 16, 0xff, 0x0f))))
    refused("unknown instruction", (BAD_INSTRUCTION, 0), openflow.FLOW_MOD,
            flow_mod(instructions=struct.pack("!HHI", 99, 8, 0)))
    refused("instruction of a wrong length", (BAD_INSTRUCTION, 7), openflow.FLOW_MOD,
            flow_mod(instructions=struct.pack("!HHI", 1, 80, 0)))
    refused("goto an earlier table", (BAD_INSTRUCTION, 2), openflow.FLOW_MOD,
            flow_mod(table=5, instructions=struct.pack("!HHB3x", 1, 8, 3)))
    refused("unknown action", (BAD_ACTION, 0), openflow.FLOW_MOD,
            flow_mod(instructions=apply_actions(struct.pack("!HHI", 999, 8, 0))))
    refused("action of length zero", (BAD_ACTION, 1), openflow.FLOW_MOD,
            flow_mod(instructions=apply_actions(output(1, length=0))))
    refused("action longer than its list", (BAD_ACTION, 1), openflow.FLOW_MOD,
            flow_mod(instructions=apply_actions(output(1, length=64))))
    refused("output to port 0xfffffff0", (BAD_ACTION, 4), openflow.FLOW_MOD,
            flow_mod(instructions=apply_actions(output(0xfffffff0))))
    refused("unknown experimenter action", (BAD_ACTION, 2), openflow.FLOW_MOD,
            flow_mod(instructions=apply_actions(struct.pack("!HHII4x", 0xffff, 16, 0x00123456, 0))))
    refused("set-field of a read-only field", (BAD_ACTION, 15), openflow.FLOW_MOD,
            flow_mod(instructions=apply_actions(pad8(struct.pack("!HH", 25, 16) + oxm("!HBBH", 0x8000, 5 << 1, 2, 1)))))
    refused("unknown flow command", (FLOW_MOD_FAILED, 6), openflow.FLOW_MOD, flow_mod(command=77))
    refused("packet-out with a bad buffer", (BAD_REQUEST, 8), openflow.PACKET_OUT,
            struct.pack("!IIH6x", 0x1234, 0xfffffffd, 0))
    refused("packet-out from a port that is none", (BAD_REQUEST, 11), openflow.PACKET_OUT,
            struct.pack("!IIH6x", 0xffffffff, 0xfffffff0, 0) + b"\0" * 60)
    refused("packet-out with its actions cut off", (BAD_REQUEST, 6), openflow.PACKET_OUT,
            struct.pack("!IIH6x", 0xffffffff, 0xfffffffd, 64) + output(1))
    refused("port mod of an unknown port", (7, 0), 16, struct.pack("!I4x6s2xIII4x", 4711, b"\0" * 6, 0, 0, 0))
    conn.close()


def scenario_openflow_10_errors(lab):
    sw = lab.switch()
    lab.bridge(sw, "br0", "fail_mode=secure")
    conn = Connection.to_bridge(sw, "br0", V10)
    match10 = struct.pack("!I", 0x3fffff) + b"\0" * 36
    head = match10 + struct.pack("!QHHHHIHH", 0, 0, 0, 0, 1, 0xffffffff, 0xffff, 0)
    cases = [
        ("unknown type", (BAD_REQUEST, 1), 99, b""),
        ("cut off", (BAD_REQUEST, 6), openflow.FLOW_MOD, head[:30]),
        ("unknown action", (BAD_ACTION, 0), openflow.FLOW_MOD, head + struct.pack("!HHI", 0x77, 8, 0)),
        ("bad action length", (BAD_ACTION, 1), openflow.FLOW_MOD, head + struct.pack("!HHHH", 0, 4, 1, 0)),
        ("bad port", (BAD_ACTION, 4), openflow.FLOW_MOD, head + struct.pack("!HHHH", 0, 8, 0xff77, 0)),
        ("bad command", (3, 4), openflow.FLOW_MOD,
         match10 + struct.pack("!QHHHHIHH", 0, 9, 0, 0, 1, 0xffffffff, 0xffff, 0)),
    ]
    for name, want, kind, body in cases:
        got = conn.error_for(kind, 0x42, body)
        assert got == want, f"{name}: error {got} instead of {want}"
        conn.echo()
    conn.close()


def scenario_openflow_framing(lab):
    """A length below 8 cannot be resynchronised: that connection ends, the others and the switch live."""
    sw = lab.switch()
    lab.bridge(sw, "br0", "fail_mode=secure")
    other = Connection.to_bridge(sw, "br0", V15)
    for version in (V10, V13, V14, V15):
        conn = Connection.to_bridge(sw, "br0", version)
        conn.send(openflow.ECHO_REQUEST, 5, length=3)
        try:
            for _ in range(10):
                conn.receive()
            raise AssertionError("the connection went on")
        except ConnectionError:
            pass
        conn.close()
        other.echo()
    # A version that does not exist, in the first message.
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(60)
    sock.connect(f"{sw.dir}/br0.mgmt")
    sock.sendall(openflow.message(0x63, openflow.HELLO, 1, struct.pack("!HHI", 1, 8, 1 << 31)))
    data = b""
    try:
        while True:
            more = sock.recv(4096)
            if not more:
                break
            data += more
    except (TimeoutError, ConnectionError):
        pass
    assert openflow.ERROR in kinds(data), data.hex()
    other.echo()


def kinds(data):
    found = []
    while len(data) >= 8:
        length = struct.unpack_from("!H", data, 2)[0]
        if length < 8:
            break
        found.append(data[1])
        data = data[length:]
    return found


def scenario_random_openflow(lab):
    """Valid messages with bytes changed at random: every connection gets a reply or is closed, the switch
    lives."""
    sw = lab.switch()
    lab.bridge(sw, "br0", "fail_mode=secure")
    rng = dice(lab)
    good = flow_mod(oxm_match(struct.pack("!HBBH", 0x8000, 5 << 1, 2, 0x800) + struct.pack(
        "!HBBII", 0x8000, 12 << 1 | 1, 8, 0x0a000000, 0xff000000)), apply_actions(output(1) + output(0xfffffffa)))
    conn = None
    for _ in range(1500):
        if conn is None:
            conn = Connection.to_bridge(sw, "br0", rng.choice((V13, V14, V15)))
        body = bytearray(good)
        for _ in range(rng.randrange(1, 6)):
            body[rng.randrange(len(body))] = rng.choice((0, 1, 0x7f, 0x80, 0xff, rng.randrange(256)))
        if rng.random() < 0.2:
            del body[rng.randrange(len(body)):]
        try:
            conn.send(rng.choice((openflow.FLOW_MOD, openflow.FLOW_MOD, openflow.PACKET_OUT, 18, 4)), 9, bytes(body))
            if rng.random() < 0.05:
                conn.echo()
        except (ConnectionError, BrokenPipeError):
            conn = None
    assert sw.alive()
    sw.ofctl("del-flows", "br0")
    assert "flow_count=0" in sw.ofctl("dump-aggregate", "br0")


def scenario_bad_control_messages(lab):
    """The JSON-RPC control socket: not JSON, not a request, wrong parameter types."""
    sw = lab.switch()
    lab.bridge(sw)
    for text in (b"nonsense", b"{", b"[1, 2, 3]", b'{"id": 1}', b'{"id":1,"method":"version","params":[1,2]}',
                 b'{"id":1,"method":7,"params":[]}', b"\xff\xfe\x00" * 50, b'"' + b"a" * 200000,
                 b"[" * 5000, b'{"id":1,"method":"fdb/show","params":["' + b"x" * 5000 + b'"]}'):
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(2)
        sock.connect(sw.ctl)
        try:
            sock.sendall(text)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(65536):
                pass
        except (TimeoutError, ConnectionError, BrokenPipeError):
            pass
        sock.close()
        assert sw.appctl("version").strip(), text[:40]
    for args in (["fdb/add", "br0", "nosuch", "0", "50:54:00:00:00:01"], ["fdb/add", "br0", "br0", "0", "nonsense"],
                 ["ofproto/trace", "br0", "in_port=nonsense"],
                 ["ofproto/trace", "br0", "ip,nw_src=1.2.3.4.5"], ["ofproto/trace", "br0", "in_port=1", "zz"],
                 ["ofproto/trace", "br0"], ["ofproto/trace", "nosuch", "in_port=1"], ["vlog/set", "nosuch:dbg"],
                 ["netdev-dummy/receive", "nosuch", "00"], ["dpctl/show", "nosuch@dp"]):
        assert sw.appctl(*args, check=2).strip(), args


def scenario_odd_rows(lab):
    """Rows that make no sense are reported or ignored; the rows beside them are applied."""
    sw = lab.switch()
    lab.bridge(sw)
    words = []
    for name, settings in {
            "o1": ["type=patch"], "o2": ["type=patch", "options:peer=o2"], "o3": ["type=patch", "options:peer=nosuch"],
            "o4": ["type=internal", "mtu_request=68"], "o5": ["type=internal", 'mac="01:00:00:00:00:01"'],
            "o6": ["type=internal", 'mac="nonsense"'], "o7": ["type=internal", "ofport_request=65279"],
            "o8": ["type=internal", "other_config:nonsense=true", "options:what=ever"],
            "averyveryverylongname": ["type=internal"]}.items():
        words += ["--", "add-port", "br0", name, "--", "set", "interface", name, *settings]
    sw.vsctl("--no-wait", *words[1:])
    sw.vsctl("--no-wait", "set", "bridge", "br0", "other_config:hwaddr=nonsense", "other_config:mac-aging-time=-5",
             "other_config:mac-table-size=zero", "other_config:datapath-id=xyz", "--", "set", "open_vswitch", ".",
             "other_config:pmd-cpu-mask=zz", "other_config:stats-update-interval=x")
    a = lab.internal_pod(sw, "a", "10.1.0.1/24")
    lab.internal_pod(sw, "b", "10.1.0.2/24")
    lab.net.ping(a, "10.1.0.2")
    assert sw.get("interface", "o1", "error") != "[]"
    assert sw.get("interface", "o2", "error") != "[]"
    sw.wait_column("interface", "o8", "ofport", lambda text: text.isdigit())
    sw.wait_column("interface", "averyveryverylongname", "ofport", lambda text: text != "[]")
    assert sw.alive()


def scenario_nonsense_frames(lab):
    """Truncated, runt, oversized and lying frames into veth and tap: dropped or passed, never an end."""
    sw = lab.switch()
    lab.bridge(sw)
    a, b = lab.veth_pod(sw, "a"), lab.veth_pod(sw, "b")
    sw.ofctl("-O", "OpenFlow13", "add-flow", "br0", "priority=9,tcp,tp_dst=81,actions=dec_ttl,mod_nw_dst:10.0.0.7,NORMAL")
    sw.ofctl("-O", "OpenFlow13", "add-flow", "br0", "priority=8,ip,actions=dec_ttl,mod_vlan_vid:7,NORMAL")
    sw.ofctl("-O", "OpenFlow13", "add-flow", "br0", "priority=7,ipv6,actions=dec_ttl,set_field:fd00::9->ipv6_dst,NORMAL")
    into, out = lab.net.raw(a, "eth0"), lab.net.raw(b, "eth0")
    rng = dice(lab)
    src, dst = "50:54:00:00:00:0a", "50:54:00:00:00:0b"
    four = frames.ethernet(dst, src, 0x0800, frames.ipv4("10.0.0.1", "10.0.0.2", 6, frames.tcp(
        "10.0.0.1", "10.0.0.2", 1, 81, data=b"d" * 40)))
    six = frames.ethernet(dst, src, 0x86dd, frames.ipv6("fd00::1", "fd00::2", 17, frames.udp(
        "fd00::1", "fd00::2", 1, 2, b"e" * 40)))
    arp = frames.ethernet(dst, src, 0x0806, frames.arp(1, src, "10.0.0.1", dst, "10.0.0.2"))
    lying = [
        frames.ethernet(dst, src, 0x0800, frames.ipv4("10.0.0.1", "10.0.0.2", 6, b"x" * 20, total=total,
                                                      version_ihl=first))
        for total in (0, 5, 19, 20, 21, 1500, 65535) for first in (0x45, 0x4f, 0x40, 0x44, 0x65, 0xff)]
    lying += [frames.ethernet(dst, src, 0x86dd, frames.ipv6("fd00::1", "fd00::2", nxt, b"\0\xff" * 10, length=length))
              for nxt in (0, 43, 44, 51, 60, 58, 6, 17, 59) for length in (0, 1, 8, 65535)]
    tags = frames.ethernet(dst, src, 0x0800, b"", [(0x8100, 1)] * 20)
    sent = 0
    for frame in [four, six, arp, tags] + lying:
        for length in sorted({14, 15, 16, 17, 18, 20, 33, 34, 35, 53, 54, len(frame) - 1, len(frame), 1514}):
            try:
                into.send(frame[:length].ljust(min(length, 14), b"\0"))
                sent += 1
            except OSError:
                pass  # the kernel's own device refuses it
    for _ in range(3000):
        frame = bytearray(rng.choice((four, six, arp, tags)))
        for _ in range(rng.randrange(1, 8)):
            frame[rng.randrange(12, len(frame))] = rng.randrange(256)
        try:
            into.send(bytes(frame[:rng.randrange(14, len(frame) + 1)]))
            sent += 1
        except OSError:
            pass
    lab.trace.note(f"{sent} frames sent")
    assert sw.alive(), "the daemon ended"
    mark = frames.ethernet("ff:ff:ff:ff:ff:ff", src, 0x9000, b"still forwarding" + b" " * 50)
    # Forwarded packets still fill the socket, so a mark may find no room.
    wait_for("forwarding to go on", lambda: into.send(mark) and receive(out, lambda data: b"still forwarding" in data, 0.5))


if __name__ == "__main__":
    main()
