"""Random frames, drawn from the small pools that the random flows match on."""

import struct

from lab import frames

MACS = ["50:54:00:00:00:01", "50:54:00:00:00:02", "50:54:00:00:00:03", "50:54:00:00:00:04", "aa:55:aa:55:00:00"]
GROUPS = ["ff:ff:ff:ff:ff:ff", "01:00:5e:00:00:05", "33:33:00:00:00:01", "01:80:c2:00:00:00", "01:80:c2:00:00:0e",
          "01:00:0c:cc:cc:cc"]
IPS = ["10.0.0.1", "10.0.0.2", "10.0.1.3", "192.168.7.4", "224.0.0.5"]
IP6S = ["fd00::1", "fd00::2", "fd00:0:0:1::3", "fe80::4", "ff02::1"]
PORTS = [0, 53, 80, 1024, 8080, 65535]
VLANS = [10, 20, 30, 4094]
TOS = [0, 0x20, 0x48, 0xb8, 1, 3, 0xff]
TTLS = [0, 1, 2, 64, 255]
TCP_FLAGS = [0x002, 0x012, 0x010, 0x004, 0x011, 0x1ff, 0x000]
LABELS = [0, 1, 0x12345, 0xfffff]


class Maker:
    """Makes frames; `hint` (field -> value) steers them towards a flow, so that deep matches are met at all."""

    def __init__(self, rng, hint=None):
        self.rng = rng
        self.hint = hint or {}

    def pick(self, name, pool):
        if name in self.hint and self.rng.random() < 0.9:
            return self.hint[name]
        return self.rng.choice(pool)

    def payload(self):
        rng = self.rng
        return bytes(rng.randrange(256) for _ in range(rng.choice([0, 4, 18, 26, 60])))

    def l4(self, proto, src, dst):
        """(protocol number, bytes)."""
        rng = self.rng
        good = rng.random() < 0.9
        sport, dport = self.pick("sport", PORTS), self.pick("dport", PORTS)
        if proto == "tcp":
            return 6, frames.tcp(src, dst, sport, dport, rng.choice(TCP_FLAGS), self.payload(), good)
        if proto == "udp":
            zero = 0 if rng.random() < 0.1 else None
            return 17, frames.udp(src, dst, sport, dport, self.payload(), good, zero)
        if proto == "sctp":
            return 132, frames.sctp(sport, dport, self.payload())
        if proto == "icmp":
            return 1, frames.icmp(self.pick("icmp_type", [0, 3, 8, 11]), rng.choice([0, 1, 3]))
        if proto == "icmp6":
            kind = self.pick("icmp_type", [128, 129, 1, 133, 135, 136, 135, 136])
            if kind in (135, 136):
                option = {135: 1, 136: 2}[kind]
                lladdr = (option, rng.choice(MACS)) if rng.random() < 0.8 else ()
                body = frames.neighbour(rng.choice(IP6S), *lladdr)
                return 58, frames.icmp6(src, dst, kind, 0 if rng.random() < 0.9 else 1, body)
            return 58, frames.icmp6(src, dst, kind, rng.choice([0, 1]))
        return rng.choice([2, 47, 50, 89, 255]), self.payload()

    def ip4(self):
        rng = self.rng
        src, dst = self.pick("ip_src", IPS), self.pick("ip_dst", IPS)
        proto, payload = self.l4(self.pick("l4", ["tcp", "tcp", "udp", "udp", "icmp", "sctp", "other"]), src, dst)
        extra = {}
        if rng.random() < 0.12:
            # first fragment, later fragment, "don't fragment"
            extra["frag"] = rng.choice([0x2000, 0x2001, 0x0005, 0x4000])
        if rng.random() < 0.1:
            extra["options"] = rng.choice([b"\x94\x04\0\0", b"\x01\x01\x01\x01\x01\x01\x01\x01"])
        if rng.random() < 0.04:
            extra["version_ihl"] = rng.choice([0x44, 0x4f, 0x65, 0x40])
        if rng.random() < 0.04:
            extra["total"] = rng.choice([0, 19, 20, 24, 2000, 65535])
        return 0x0800, frames.ipv4(src, dst, proto, payload, rng.choice(TOS), rng.choice(TTLS),
                                   good=rng.random() < 0.95, **extra)

    def ip6(self):
        rng = self.rng
        src, dst = self.pick("ip6_src", IP6S), self.pick("ip6_dst", IP6S)
        proto, payload = self.l4(self.pick("l4", ["tcp", "udp", "icmp6", "icmp6", "sctp", "other"]), src, dst)
        pick = rng.random()
        if pick < 0.05:    # hop-by-hop options
            payload, proto = struct.pack("!BB", proto, 0) + b"\x01\x04\0\0\0\0" + payload, 0
        elif pick < 0.10:  # fragment header: first, later, atomic
            payload = struct.pack("!BBHI", proto, 0, rng.choice([1, 0x0008 | 1, 0x0010, 0]), 77) + payload
            proto = 44
        elif pick < 0.13:  # destination options, then routing
            payload = struct.pack("!BB", 43, 0) + b"\x01\x04\0\0\0\0" + struct.pack("!BB", proto, 0) + b"\0" * 6 + \
                payload
            proto = 60
        elif pick < 0.15:  # no next header
            proto = 59
        length = rng.choice([None] * 20 + [0, 4, 3000])
        return 0x86dd, frames.ipv6(src, dst, proto, payload, rng.choice(TOS), rng.choice(LABELS), rng.choice(TTLS),
                                   length)

    def arp(self):
        rng = self.rng
        body = frames.arp(rng.choice([1, 2, 1, 2, 3, 0, 0x100]), rng.choice(MACS), self.pick("ip_src", IPS),
                          rng.choice(MACS + ["00:00:00:00:00:00"]), self.pick("ip_dst", IPS))
        if rng.random() < 0.05:
            body = body[:rng.randrange(len(body))]
        return rng.choice([0x0806] * 9 + [0x8035]), body

    def nsh(self):
        """A network service header in front of one more packet; at times one that is wrong."""
        rng = self.rng
        kind = rng.choice([1, 1, 1, 2, 2, 3])
        metadata = {1: struct.pack("!4I", *(rng.choice([0, 0x11223344, rng.getrandbits(32)]) for _ in range(4))),
                    2: rng.choice([b"", b"\x10\x00\x0a\x04\x12\x34\x56\x78"])}.get(kind, b"")
        words = 2 + len(metadata) // 4
        if rng.random() < 0.08:
            words = rng.choice([0, 1, 2, 5, 7, 63])
        version = 0 if rng.random() < 0.95 else 1
        first = version << 14 | rng.randrange(4) << 12 | rng.choice([0, 1, 2, 63]) << 6 | words
        behind = rng.choice([1, 2, 3, 3, 3, 4, 5, 0])
        inner = {1: lambda: self.ip4()[1], 2: lambda: self.ip6()[1], 4: lambda: self.nsh()[1]}.get(behind, lambda: bytes.fromhex(self.plain()))()
        return 0x894f, struct.pack("!HBBI", first, kind, behind, rng.choice([0x1234ff, 255, 0, 0xffffff01])) + metadata + inner

    def plain(self):
        """A frame of IP, as hexadecimal text."""
        return Maker(self.rng, {"family": self.rng.choice(["ip4", "ip6"])}).frame()

    def tags(self):
        rng, pick = self.rng, self.rng.random()
        if "vlan" in self.hint and pick < 0.9:
            return [(0x8100, self.hint["vlan"] | rng.choice([0, 1, 7]) << 13)] if self.hint["vlan"] else []
        if pick < 0.35:
            return [(0x8100, self.tci())]
        if pick < 0.42:
            return [(rng.choice([0x8100, 0x88a8]), self.tci()), (0x8100, self.tci())]
        return [(0x88a8, self.tci())] if pick < 0.44 else []

    def tci(self):
        """Priority tags too.  No drop eligible bit: OVS keeps it only while it need not put the tag on again."""
        return self.rng.choice([0, *VLANS, *VLANS, *VLANS]) | self.rng.choice([0, 0, 0, 1, 7]) << 13

    def pad(self, data):
        """Usually pads to Ethernet's minimum, as a NIC would deliver it."""
        return data.ljust(60, b"\0") if self.rng.random() < 0.8 else data

    def frame(self):
        """One frame as hexadecimal text."""
        rng = self.rng
        dst = self.pick("dst", MACS if rng.random() < 0.75 else GROUPS)
        src = self.pick("src", MACS if rng.random() < 0.98 else GROUPS)
        family = self.pick("family", ["llc"] + ["raw"] * 2 + ["nsh"] * 2 + ["arp"] * 4 + ["ip4"] * 16 + ["ip6"] * 9)
        if family == "llc":
            return self.pad(frames.llc(rng.choice(GROUPS), src, self.payload())).hex()
        if family == "raw":
            ethertype, payload = self.pick("ethertype", [0x88cc, 0x9000, 0x0600, 0x22f0]), self.payload()
        else:
            ethertype, payload = getattr(self, family)()
        data = frames.ethernet(dst, src, ethertype, payload, self.tags())
        if rng.random() < 0.05:
            return data[:rng.randrange(14, max(15, len(data)))].hex()
        return self.pad(data).hex()


def hint_from(kind, fields):
    """Hints for a frame that may match a flow of this kind and these match fields."""
    hint = {}
    if kind == "arp":
        hint["family"] = "arp"
    elif kind == "type":
        hint["family"] = "raw"
    elif kind in ("ip", "tcp", "udp", "sctp", "icmp"):
        hint["family"] = "ip4"
    elif kind not in ("any", "l2"):
        hint["family"] = "ip6"
    proto = {"nd": "icmp6"}.get(kind, kind if kind == "icmp6" else kind.removesuffix("6"))
    if proto in ("tcp", "udp", "sctp", "icmp", "icmp6"):
        hint["l4"] = proto
    names = {"dl_src": "src", "dl_dst": "dst", "nw_src": "ip_src", "nw_dst": "ip_dst", "arp_spa": "ip_src",
             "arp_tpa": "ip_dst", "ipv6_src": "ip6_src", "ipv6_dst": "ip6_dst"}
    for field in fields:
        name, _, value = field.partition("=")
        value, _, mask = value.partition("/")
        if name in names and not mask or name.startswith(("nw_", "ipv6_")) and mask.isdigit() and name in names:
            hint[names[name]] = value
        elif name.endswith(("tp_src", "tcp_src", "udp_src", "sctp_src")):
            hint["sport"] = int(value, 0)
        elif name.endswith(("tp_dst", "tcp_dst", "udp_dst", "sctp_dst")):
            hint["dport"] = int(value, 0)
        elif name == "icmp_type":
            hint["icmp_type"] = int(value)
        elif name == "dl_type" and int(value, 0) >= 0x600:
            hint["ethertype"] = int(value, 0)
        elif name in ("dl_vlan", "vlan_vid", "vlan_tci"):
            number = int(value, 0)
            hint["vlan"] = 0 if number in (0, 0xffff) else (number & 0xfff or 10)
    return hint
