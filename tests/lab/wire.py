"""Sends frames by a device and captures frames on another, inside a machine's namespace. Run there as a program.

    wire.py send DEVICE [INTERVAL_S]      frames as lines of hex on standard input
    wire.py capture DEVICE SECONDS [MAC]  prints frames that arrive at UDP ports 5000 to 5999 as lines of hex, and
                                          "begins" on standard error first. MAC: frames from addresses that begin so
"""

import ctypes
import socket
import struct
import sys
import time

ETH_P_ALL = 3
PACKET_AUXDATA = 8
SOL_PACKET = 263
TP_STATUS_VLAN_VALID = 1 << 4
SO_ATTACH_FILTER = 26
# Classic BPF (linux/filter.h): code, jumps if true and if false, constant. Accepts UDP of IPv4 and IPv6, and tagged frames.
LOAD_HALF, LOAD_BYTE, IF_EQUAL, RETURN = 0x28, 0x30, 0x15, 0x06
UDP_OR_TAGGED = [
    (LOAD_HALF, 0, 0, 12),
    (IF_EQUAL, 3, 0, 0x0800), (IF_EQUAL, 4, 0, 0x86dd), (IF_EQUAL, 5, 0, 0x8100), (IF_EQUAL, 4, 5, 0x88a8),
    (LOAD_BYTE, 0, 0, 23), (IF_EQUAL, 2, 3, 17),
    (LOAD_BYTE, 0, 0, 20), (IF_EQUAL, 0, 1, 17),
    (RETURN, 0, 0, 1 << 18),
    (RETURN, 0, 0, 0),
]


def opened(device):
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    sock.bind((device, 0))
    return sock


def send(device, interval):
    sock = opened(device)
    for line in sys.stdin:
        sock.send(bytes.fromhex(line.strip()))
        time.sleep(interval)


def receive_only(sock, program):
    """Without this, a stream of TCP in the same namespace fills the socket's buffer."""
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(buffer)))


def tagged(frame, auxiliary):
    """The frame with the tag that the kernel keeps beside it."""
    for level, kind, data in auxiliary:
        if level == SOL_PACKET and kind == PACKET_AUXDATA:
            status, _, _, _, _, tci, tpid = struct.unpack("=IIIHHHH", data[:20])
            if status & TP_STATUS_VLAN_VALID:
                return frame[:12] + struct.pack("!HH", tpid, tci) + frame[12:]
    return frame


def udp_port(frame):
    """The destination port of a datagram of IPv4 or IPv6, with one tag or none."""
    at = 12
    kind = struct.unpack_from("!H", frame, at)[0]
    if kind == 0x8100:
        at += 4
        kind = struct.unpack_from("!H", frame, at)[0]
    if kind == 0x0800 and frame[at + 11] == 17:
        at += 2 + (frame[at + 2] & 15) * 4
    elif kind == 0x86dd and frame[at + 8] == 17:
        at += 42
    else:
        return 0
    return struct.unpack_from("!H", frame, at + 2)[0]


def capture(device, seconds, source=None):
    sock = opened(device)
    if not source:
        receive_only(sock, UDP_OR_TAGGED)
    sock.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
    print("begins", file=sys.stderr, flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sock.settimeout(max(0.01, end - time.monotonic()))
        try:
            frame, auxiliary, _, address = sock.recvmsg(65536, 256)
        except TimeoutError:
            break
        frame = tagged(frame, auxiliary)
        # Outgoing frames are no arrivals.
        is_wanted = frame[6:12].startswith(source) if source else len(frame) >= 42 and 5000 <= udp_port(frame) < 6000
        if address[2] != 4 and is_wanted:
            print(frame.hex(), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(sys.argv[2], float(sys.argv[3]) if len(sys.argv) > 3 else 0)
    else:
        capture(sys.argv[2], float(sys.argv[3]), bytes.fromhex(sys.argv[4].replace(":", "")) if len(sys.argv) > 4 else None)
