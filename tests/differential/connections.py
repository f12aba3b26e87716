"""Random cases about connections: rules that track, and conversations in both directions.

A case has the form of `generate`'s, with `connections` set: the tracker is emptied before it, and its
connections at the end are compared. In the reference a translation begins at a random port. So translations
give one address and at most one port, and no two conversations of a case have the same ports."""

import random

from lab import frames

HOSTS = {4: ["10.0.0.1", "10.0.0.2", "10.0.1.3"], 6: ["fd00::1", "fd00::2", "fd00:0:0:1::3"]}
OTHERS = {4: ["10.9.9.9", "10.0.0.200"], 6: ["fd09::9", "fd00::200"]}
MACS = ["50:54:00:00:00:01", "50:54:00:00:00:02"]
TRACK, FIRST, SECOND, LAST = 0, 10, 11, 12
SYN, ACK, FIN, RST = 0x02, 0x10, 0x01, 0x04
PROTOCOLS = {4: ["tcp", "tcp", "udp", "udp", "icmp", "icmp"], 6: ["tcp", "udp", "icmp6"]}


def case(seed):
    """The case that belongs to a seed."""
    rng = random.Random(seed)
    number = rng.choice([2, 3])
    ports = [{"bridge": "br0", "name": f"p0{n}", "ofport": n, "settings": []} for n in range(1, number + 1)]
    family = rng.choice([4, 4, 4, 6])
    rules = Rules(rng, number, family)
    rules.make()
    packets = []
    talks = [conversation(rng, family, 1000 + 10 * n, rules) for n in range(rng.randrange(1, 5))]
    while any(talks):
        talk = rng.choice([t for t in talks if t])
        side, frame = talk.pop(0)
        packets.append({"port": f"p0{side}", "hex": frame.hex()})
    return {"seed": str(seed), "protocol": rng.choice(["OpenFlow13", "OpenFlow15"]), "connections": True,
            "bridges": [{"name": "br0", "settings": ["fail_mode=secure", "other_config:hwaddr=aa:55:aa:55:00:00"]}],
            "ports": ports, "patches": [], "flows": rules.flows, "groups": [], "meters": [], "packets": packets}


class Rules:
    """Table 0 tracks; table 10 decides by the state, commits, and may track once more into table 11; table 12 sends."""

    def __init__(self, rng, ports, family):
        self.rng, self.ports, self.family = rng, ports, family
        self.flows = []
        self.zone = rng.choice([0, 1, 5, 65535])
        self.nat = rng.random() < 0.5
        self.ip = "ip" if family == 4 else "ipv6"

    def flow(self, table, priority, match, actions):
        self.flows.append({"bridge": "br0", "table": table, "priority": priority, "extra": [], "match": match,
                           "actions": actions})

    def port(self):
        return self.rng.randrange(1, self.ports + 1)

    def translation(self):
        """The `nat(...)` of a new connection."""
        rng = self.rng
        end = rng.choice(["src", "src", "dst"])
        address = rng.choice(OTHERS[self.family])
        port = rng.choice([None, None, 4321])
        if port is None:
            return f"nat({end}={address})"
        return f"nat({end}={f'[{address}]' if self.family == 6 else address}:{port})"

    def noted(self):
        """Mark and label that are written into a connection."""
        rng = self.rng
        return rng.choice(["", "", "set_field:7->ct_mark", "set_field:0x5/0xf->ct_mark", "set_field:0x9->ct_label",
                           "set_field:0x30000000000000000/0xf0000000000000000->ct_label",
                           "set_field:3->ct_mark,set_field:4->ct_label", "move:NXM_OF_IN_PORT[]->NXM_NX_CT_MARK[0..15]",
                           "load:1->NXM_NX_CT_LABEL[64]"])

    def track(self, table, *more):
        zone = self.rng.choice([f"zone={self.zone}"] * 4 + ["zone=NXM_NX_REG1[0..15]"])
        return f"ct({','.join([f'table={table}', zone, *more])})"

    def commit(self, force=False):
        parts = ["commit"] + (["force"] if force else []) + [f"zone={self.zone}"]
        if self.nat and not force:
            parts.append(self.translation())
        if noted := self.noted():
            parts.append(f"exec({noted})")
        if self.rng.random() < 0.4:
            parts.append(f"table={LAST}")
        return f"ct({','.join(parts)})"

    def make(self):
        rng = self.rng
        nat = ["nat"] if self.nat else []
        self.flow(TRACK, 100, [self.ip], [f"load:{self.zone}->NXM_NX_REG1[]", self.track(FIRST, *nat)])
        if rng.random() < 0.3:
            self.flow(TRACK, 200, [self.ip, f"in_port={self.port()}"],
                      [self.track(FIRST, *nat), f"output:{self.port()}"])
        self.flow(TRACK, 1, [], [f"output:{self.port()}"])
        states = ["+trk+new", "+trk+new", "+trk+est", "+trk+est-rpl", "+trk+rpl", "+trk+rel", "+trk+inv", "+trk-new",
                  "+trk+new+rel", "+trk+snat", "+trk+dnat", "-trk", "+trk-inv"]
        for priority in rng.sample(range(10, 100), rng.randrange(2, 7)):
            self.flow(FIRST, priority, [f"ct_state={rng.choice(states)}", self.ip, *self.detail()], self.then())
        self.flow(FIRST, 5, [self.ip], rng.choice([[self.commit(), f"output:{self.port()}"], [f"resubmit(,{LAST})"]]))
        self.flow(SECOND, 10, [f"ct_state={rng.choice(states)}", self.ip], [f"output:{self.port()}"])
        self.flow(SECOND, 5, [], [f"resubmit(,{LAST})"])
        self.flow(LAST, 10, rng.choice([[], [f"ct_state={rng.choice(states)}", self.ip]]), [f"output:{self.port()}"])
        self.flow(LAST, 5, [], rng.choice([["IN_PORT"], [f"output:{self.port()}"], ["ct_clear", f"output:{self.port()}"]]))

    def detail(self):
        rng = self.rng
        original = "ct_nw_src" if self.family == 4 else "ct_ipv6_src"
        return rng.choice([[], [], [], [f"in_port={self.port()}"], [f"ct_zone={self.zone}"], ["ct_mark=7"],
                           ["ct_mark=0x1/0x1"], ["ct_label=0x9"], ["ct_label=0x4/0x4"],
                           [f"{original}={rng.choice(HOSTS[self.family])}"], ["ct_nw_proto=17"]])

    def then(self):
        rng = self.rng
        return rng.choice([
            [self.commit(), f"output:{self.port()}"],
            [self.commit(), f"resubmit(,{LAST})"],
            # Behind a translation in the same zone the reference takes a forced packet for a reply.
            [self.commit(force=not self.nat), f"output:{self.port()}"],
            [f"output:{self.port()}"],
            [f"resubmit(,{LAST})"],
            ["drop"],
            ["ct_clear", f"resubmit(,{SECOND})"],
            [f"ct(table={SECOND},zone={rng.choice([self.zone, 9])})"],
            [f"ct(commit,zone=9)", f"output:{self.port()}"],
            [f"clone({self.commit()})", f"output:{self.port()}"],
            ["move:NXM_NX_CT_MARK[]->NXM_NX_REG2[]", f"output:{self.port()}"],
            ["dec_ttl", self.commit(), f"output:{self.port()}"],
        ])


def conversation(rng, family, sport, rules):
    """[(port, frame)]: packets of one connection; at times some are wrong, missing or late."""
    client, server = rng.sample(HOSTS[family], 2)
    seen = rng.choice([client, client, *OTHERS[family]]) if rules.nat else client
    kind = rng.choice(PROTOCOLS[family])
    dport = rng.choice([53, 80])
    talk = {"tcp": tcp, "udp": udp}.get(kind, ping)(rng, family, (client, seen, server, sport, dport))
    # The reference gives a TCP header that a translated error of ICMPv6 quotes a wrong checksum.
    if rng.random() < 0.3 and not (rules.nat and kind == "tcp" and family == 6):
        talk.insert(rng.randrange(1, len(talk) + 1), unreachable(rng, family, kind, (client, seen, server, sport, dport)))
    if rng.random() < 0.3:
        del talk[rng.randrange(len(talk))]
    if rng.random() < 0.3:
        # The reference keeps the port of a translated connection taken that was closed: opened again it has another.
        again = talk[1:] if rules.nat and kind == "tcp" else talk
        talk.append(rng.choice(again) if again else (1, b"\0" * 60))
    return talk


def packet(family, side, src, dst, proto, payload, good=True):
    """From the client (side 1) or the server (side 2)."""
    ends = MACS if side == 2 else MACS[::-1]
    if family == 4:
        body, kind = frames.ipv4(src, dst, proto, payload, good=good), 0x0800
    else:
        body, kind = frames.ipv6(src, dst, proto, payload), 0x86dd
    frame = frames.ethernet(*ends, kind, body)
    return side, frame + b"\0" * (60 - len(frame))


def tcp(rng, family, ends):
    client, seen, server, sport, dport = ends
    mine, theirs = rng.choice([1, 1000, 0xfffffff0]), 5000
    steps = [(1, SYN, b""), (2, SYN | ACK, b""), (1, ACK, b"")]
    steps += [(rng.choice([1, 2]), ACK, b"x" * rng.choice([1, 40])) for _ in range(rng.randrange(4))]
    steps += rng.choice([[], [(1, FIN | ACK, b""), (2, FIN | ACK, b""), (1, ACK, b"")], [(2, RST | ACK, b"")], [(1, RST, b"")],
                         [(1, SYN, b"")]])
    out, sent = [], {1: mine, 2: theirs}
    for side, flags, data in steps:
        odd = rng.choice([0] * 12 + [1 << 20, -(1 << 20), 1])
        good = rng.random() < 0.95
        acked = sent[3 - side] if flags & ACK else 0
        src, dst = (client, server) if side == 1 else (server, seen)
        ports = (sport, dport) if side == 1 else (dport, sport)
        segment = frames.tcp(src, dst, *ports, flags, data, good, sent[side] + odd, acked)
        out.append(packet(family, side, src, dst, 6, segment))
        sent[side] += len(data) + bool(flags & (SYN | FIN))
    return out


def udp(rng, family, ends):
    client, seen, server, sport, dport = ends
    out = []
    for side in [1] + [rng.choice([1, 2, 2]) for _ in range(rng.randrange(4))]:
        src, dst = (client, server) if side == 1 else (server, seen)
        ports = (sport, dport) if side == 1 else (dport, sport)
        out.append(packet(family, side, src, dst, 17, frames.udp(src, dst, *ports, b"hello", rng.random() < 0.95)))
    return out


def echo(family, src, dst, kind, ident, data=b"abcdefgh"):
    body = ident.to_bytes(2, "big") + b"\0\1" + data
    if family == 4:
        return 1, frames.icmp({"ask": 8, "answer": 0}[kind], 0, body)
    return 58, frames.icmp6(src, dst, {"ask": 128, "answer": 129}[kind], 0, body)


def ping(rng, family, ends):
    client, seen, server, ident, _ = ends
    out = []
    for side in [1] + [rng.choice([1, 2, 2]) for _ in range(rng.randrange(4))]:
        src, dst = (client, server) if side == 1 else (server, seen)
        out.append(packet(family, side, src, dst, *echo(family, src, dst, "ask" if side == 1 else "answer", ident)))
    return out


def unreachable(rng, family, kind, ends):
    """An ICMP error from the server's side, or from a router, about a packet of the client."""
    client, seen, server, sport, dport = ends
    if kind == "tcp":
        proto, quoted = 6, frames.tcp(seen, server, sport, dport, SYN)
    elif kind == "udp":
        proto, quoted = 17, frames.udp(seen, server, sport, dport, b"hello")
    else:
        proto, quoted = echo(family, seen, server, "ask", sport)
    if rng.random() < 0.3:
        # Open vSwitch wants all of a TCP header in an error of ICMPv6.
        quoted = quoted[:8] if family == 4 or proto != 6 else quoted[:20]
    src = rng.choice([server, server, OTHERS[family][0]])
    if family == 4:
        inner = frames.ipv4(seen, server, proto, quoted)
        return packet(family, 2, src, seen, 1, frames.icmp(3, rng.choice([1, 3]), b"\0" * 4 + inner))
    inner = frames.ipv6(seen, server, proto, quoted)
    return packet(family, 2, src, seen, 58, frames.icmp6(src, seen, 1, rng.choice([0, 4]), b"\0" * 4 + inner))
