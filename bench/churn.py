#!/usr/bin/env python3
"""Rules that come and go all the time, beside established traffic that none of them is about.

    bench/churn.py SOCKET RATE [--in-port N] [--table N]

Speaks OpenFlow 1.0 on a bridge's management socket: RATE flow mods a second, evenly spread. Each adds or
strictly deletes a rule of all five fields. The addresses and source ports are those of `heddle bench rules
--kind exact`, in any combination; the destination ports are others. A barrier follows every hundredth. Ends
with SIGTERM; then prints, as JSON, the number of changes that the switch has confirmed, and the time.
"""

import argparse
import json
import random
import select
import signal
import socket
import struct
import time

RULES, FLOWS, PORTS = 1_000, 50_000, 1 << 14
HELLO, ERROR, ECHO, ECHO_REPLY, VENDOR, FLOW_MOD, BARRIER, BARRIER_REPLY = 0, 1, 2, 3, 4, 14, 18, 19
ADD, DELETE_STRICT = 0, 4
# All fields but the tag, the Ethernet addresses and the type of service count.
WILDCARDS = 1 << 1 | 1 << 2 | 1 << 3 | 1 << 20 | 1 << 21
# Not evenly spread on purpose: nothing that all of them have in common tells them from the flows.
TARGETS = [(random.randrange(FLOWS), random.choice([port for port in range(1024, 9216) if port != 5001])) for _ in range(RULES)]


def message(kind, xid, body=b""):
    return struct.pack("!BBHI", 1, kind, 8 + len(body), xid) + body


# From now on the upper byte of a command is a table (NXT_FLOW_MOD_TABLE_ID).
NAME_TABLES = struct.pack("!IIB7x", 0x2320, 15, 1)


def change(number, in_port, table, xid):
    """The change with this number: all rules are added, one after the other, and then all are deleted."""
    command = ADD if number // RULES % 2 == 0 else DELETE_STRICT
    flow, dport = TARGETS[number % RULES]
    _, a, b, c = (flow // PORTS).to_bytes(4, "big")
    match = struct.pack("!IH12xHBxHBB2x4s4sHH", WILDCARDS, in_port, 0, 0, 0x0800, 0, 17, bytes((10, a, b, c)), bytes((20, a, c, b)),
                        1024 + flow % PORTS, dport)
    actions = struct.pack("!HHHH", 0, 8, in_port + 1, 0) if command == ADD else b""
    return message(FLOW_MOD, xid, match + struct.pack("!QHHHHIHH", 0, table << 8 | command, 0, 0, 0x8000, 0xffffffff, 0xffff, 0) + actions)


class Client:
    def __init__(self, path):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)
        self.sock.sendall(message(HELLO, 1) + message(VENDOR, 2, NAME_TABLES))
        self.buffer = b""
        self.confirmed = 0

    def read(self, timeout):
        """Replies to echo requests, counts confirmed changes."""
        while select.select([self.sock], [], [], timeout)[0]:
            data = self.sock.recv(1 << 16)
            if not data:
                raise SystemExit("churn: the switch hung up")
            self.buffer += data
            while len(self.buffer) >= 8:
                _, kind, length, xid = struct.unpack("!BBHI", self.buffer[:8])
                if len(self.buffer) < length:
                    break
                body, self.buffer = self.buffer[8:length], self.buffer[length:]
                if kind == ECHO:
                    self.sock.sendall(message(ECHO_REPLY, xid, body))
                elif kind == BARRIER_REPLY:
                    self.confirmed = xid
                elif kind == ERROR:
                    raise SystemExit(f"churn: the switch refuses a rule: {body[:4].hex()}")
            timeout = 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("socket")
    parser.add_argument("rate", type=float)
    parser.add_argument("--in-port", type=int, default=1)
    parser.add_argument("--table", type=int, default=0)
    args = parser.parse_args()
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    client, done, began = Client(args.socket), 0, time.monotonic()
    while not stopped:
        due = int((time.monotonic() - began) * args.rate)
        # A switch that cannot keep up is waited for.
        if done < due and done - client.confirmed < 1000:
            client.sock.sendall(change(done, args.in_port, args.table, 0))
            done += 1
            if done % 100 == 0:
                client.sock.sendall(message(BARRIER, done))
            client.read(0)
        else:
            client.read(min(0.01, max(0.0002, (done + 1) / args.rate - (time.monotonic() - began))))
    print(json.dumps({"changes": client.confirmed, "seconds": time.monotonic() - began}))


if __name__ == "__main__":
    main()
