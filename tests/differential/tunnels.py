"""Random cases about tunnels: ports of br1 that lead through br0, packets that go into them, and packets that come out of them.

A case has the form of `generate`'s, and besides
  tunnels  [{bridge, name, ofport, type, options: [...]}]
  underlay {addresses: [...], routes: [[prefix, gateway]], neighbours: [[address, MAC]]}  all of br0
  tlv      options of Geneve that br1 maps
All neighbours are known, since packets to unknown ones are treated in Heddle's own way. Packets out are
compared byte by byte, except the fields that each switch chooses for itself (`comparable`).
"""

import random
import socket
import struct

from lab import frames
from packets import MACS, Maker

OWN4, OWN6, OWN_MAC = "10.1.0.1", "fd01::1", "aa:55:aa:55:00:00"
REMOTES = {4: ["10.1.0.2", "10.1.0.3", "10.9.0.4"], 6: ["fd01::2", "fd01::3", "fd09::4"]}
UNDERLAY = {"addresses": [f"{OWN4}/24", f"{OWN6}/64"], "routes": [["10.9.0.0/16", "10.1.0.3"], ["fd09::/64", "fd01::3"]],
            "neighbours": [["10.1.0.2", "f8:bc:12:44:34:02"], ["10.1.0.3", "f8:bc:12:44:34:03"], ["fd01::2", "f8:bc:12:44:36:02"],
                           ["fd01::3", "f8:bc:12:44:36:03"]]}
TLV = "{class=0x102,type=0x80,len=4}->tun_metadata0,{class=0xffff,type=1,len=8}->tun_metadata1,{class=0xffff,type=2,len=124}->tun_metadata2"
KEYS = [0, 5, 123, 0xffffff]
UDP_PORTS = {"geneve": 6081, "vxlan": 4789}
GRE_KINDS = ["gre", "ip6gre", "erspan"]
KINDS = ["geneve", "geneve", "geneve", "vxlan", "vxlan", "gre", "gre", "ip6gre", "erspan"]


def tunnel(rng, number, taken):
    """One tunnel port; None if another one takes the same packets already."""
    kind = rng.choice(KINDS)
    if kind in GRE_KINDS:
        # One kind of GRE in a case: the reference takes all GRE packets out by the kind of its first port.
        kind = next((of for of, *_ in taken if of in GRE_KINDS), kind)
    family = 6 if kind == "ip6gre" or kind in UDP_PORTS and rng.random() < 0.3 else 4
    flow_remote = rng.random() < 0.3
    remote = "flow" if flow_remote else rng.choice(REMOTES[family])
    key = rng.choice(["flow", "flow", None, *KEYS])
    options = [f"remote_ip={remote}"]
    if kind == "erspan":
        key = rng.choice(["flow", 5, 123])
        options += rng.choice([["erspan_ver=1", "erspan_idx=3"], ["erspan_ver=2", "erspan_dir=1", "erspan_hwid=4"]])
    if key is not None:
        options.append(f"key={key}")
    # No local_ip: without the kernel's routes the reference knows no address as its own, and sends nothing
    # from a configured one.
    if flow_remote and rng.random() < 0.3:
        options.append("local_ip=flow")
    same = (kind, remote, key)
    if same in taken:
        return None
    taken.add(same)
    for name, values in (("csum", ["true", "false"]), ("tos", ["inherit", "0x20", "0"]), ("ttl", ["inherit", "32", "255"]),
                         ("df_default", ["false", "true"])):
        if rng.random() < 0.35:
            options.append(f"{name}={rng.choice(values)}")
    # No exts=gbp: the reference's userspace tunnels neither write nor read group policies.
    if kind in ("gre", "ip6gre") and rng.random() < 0.2:
        options.append("seq=true")
    # No packet_type=legacy_l3: it crashes the reference if packets are flooded or resubmitted.
    return {"bridge": "br1", "name": f"t{number}", "ofport": 10 + number, "type": kind, "options": options,
            "family": family, "key": key, "remote": remote}


def writes(rng, of):
    """Actions of a flow before it outputs to a tunnel."""
    out = []
    if of["remote"] == "flow" or rng.random() < 0.1:
        field = "tun_dst" if of["family"] == 4 else "tun_ipv6_dst"
        if of["family"] == 6:
            # An IPv4 destination, if the packet itself came from such a tunnel, is cleared first.
            out.append("set_field:0.0.0.0->tun_dst")
        out.append(f"set_field:{rng.choice(REMOTES[of['family']])}->{field}")
    if of["key"] == "flow" or rng.random() < 0.2:
        out.append(f"set_field:{rng.choice(KEYS)}->tun_id")
    if of["type"] == "geneve" and rng.random() < 0.7:
        out += rng.sample([f"set_field:{rng.getrandbits(32):#x}->tun_metadata0", "set_field:0x7/0xff->tun_metadata0",
                           f"set_field:{rng.getrandbits(64):#x}->tun_metadata1", f"load:{rng.randrange(9)}->NXM_NX_TUN_METADATA2[3..9]",
                           "move:NXM_OF_IN_PORT[]->NXM_NX_TUN_METADATA0[0..15]"], rng.choice([1, 1, 2]))
    return out


def flows(rng, pods, tunnels):
    """Flows of br1: pods into tunnels, tunnels into pods and into each other."""
    out = []

    def flow(priority, match, actions, table=0):
        out.append({"bridge": "br1", "table": table, "priority": priority, "extra": [], "match": match, "actions": actions})

    def into(some):
        actions = []
        for of in some:
            actions += writes(rng, of) + [f"output:{of['ofport']}"]
        return actions
    for pod in pods:
        style = rng.random()
        some = rng.sample(tunnels, min(len(tunnels), rng.choice([1, 1, 1, 2, 3])))
        if style < 0.1:
            flow(10, [f"in_port={pod}"], ["NORMAL"])
        elif style < 0.2:
            flow(10, [f"in_port={pod}"], [f"set_field:{rng.choice(REMOTES[4])}->tun_dst", "set_field:5->tun_id", "FLOOD"])
        elif style < 0.35:
            # The flow changes the packet too, not only the tunnel.
            change = rng.choice(["dec_ttl", "mod_nw_tos:32", f"mod_dl_dst:{MACS[2]}", "mod_vlan_vid:10"])
            flow(10, [f"in_port={pod}", "ip"], [change, *into(some), f"output:{rng.choice(pods)}"])
            flow(5, [f"in_port={pod}"], into(some))
        else:
            flow(10, [f"in_port={pod}"], into(some))
    for of in tunnels:
        for priority in rng.sample([10, 20, 30], rng.choice([1, 2])):
            match = [f"in_port={of['ofport']}"]
            match += rng.sample([f"tun_id={rng.choice(KEYS)}", f"tun_src={rng.choice(REMOTES[4])}", "tun_metadata0=0x5/0x5", "tun_metadata1=0",
                                 f"tun_dst={OWN4}", "tun_flags=-oam", "ip"], rng.choice([0, 1, 1, 2]))
            pick = rng.random()
            if pick < 0.15:
                actions = ["NORMAL"]
            elif pick < 0.35:
                # Tunnels of one address family only: if a packet has addresses of both, each switch chooses
                # in its own way.
                actions = into([rng.choice([t for t in tunnels if t["family"] == of["family"]])])
            else:
                shown = rng.sample(["move:NXM_NX_TUN_ID[0..15]->NXM_OF_ETH_DST[0..15]", "move:NXM_NX_TUN_METADATA0[]->NXM_OF_ETH_SRC[0..31]",
                                    "move:NXM_NX_TUN_IPV4_SRC[]->NXM_OF_ETH_DST[16..47]"], rng.choice([0, 1, 2]))
                actions = [*shown, f"output:{rng.choice(pods)}"]
            flow(priority, match, actions)
    if rng.random() < 0.5:
        flow(1, [], [rng.choice(["NORMAL", f"output:{rng.choice(pods)}"])])
    return out


def geneve_options(rng):
    out = b""
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        pick = rng.random()
        if pick < 0.5:
            out += struct.pack("!HBBI", 0x102, 0x80, 1, rng.choice([5, 7, rng.getrandbits(32)]))
        elif pick < 0.8:
            out += struct.pack("!HBBQ", 0xffff, 1, 2, rng.choice([0, rng.getrandbits(64)]))
        else:
            # An option that is not mapped; sometimes a critical one.
            out += struct.pack("!HBBI", 0x103, rng.choice([1, 0x81]), 1, 9)
    return out


def tunnelled(rng, of):
    """A packet to this tunnel endpoint, usually a right one."""
    family = of["family"]
    inner = Maker(rng, {"family": rng.choice(["ip4", "ip4", "ip6", "arp"])}).frame()
    inner = bytes.fromhex(inner)
    key = of["key"] if isinstance(of["key"], int) and rng.random() < 0.9 else rng.choice(KEYS)
    kind = of["type"]
    if kind == "geneve":
        options = geneve_options(rng)
        body = struct.pack("!BBHI", len(options) // 4, rng.choice([0, 0, 0, 0x80, 0x40]), 0x6558, key << 8) + options + inner
    elif kind == "vxlan":
        body = struct.pack("!II", rng.choice([0x08000000] * 9 + [0]), key << 8) + inner
    else:
        protocol = 0x6558
        if kind == "erspan":
            protocol = 0x88be
            inner = struct.pack("!HHI", 0x1000, key & 0x3ff, 3) + inner
            body = struct.pack("!HHI", 0x1000, protocol, 1) + inner
        else:
            flags = (0x2000 if of["key"] is not None else 0) | (0x1000 if rng.random() < 0.1 else 0)
            body = struct.pack("!HH", flags, protocol) + (struct.pack("!I", key & 0xffffffff) if flags & 0x2000 else b"") + \
                (struct.pack("!I", 7) if flags & 0x1000 else b"") + inner
    src = of["remote"] if of["remote"] != "flow" and rng.random() < 0.9 else rng.choice(REMOTES[family])
    dst = OWN4 if family == 4 else OWN6
    if rng.random() < 0.04:
        dst = REMOTES[family][1]
    if kind in UDP_PORTS:
        csum = rng.choice([0, None, None]) if family == 4 else None
        body, protocol = frames.udp(src, dst, rng.randrange(32768, 61000), UDP_PORTS[kind], body, rng.random() < 0.95, csum), 17
    else:
        protocol = 47
    tos, ttl = rng.choice([0, 0, 0x20, 1, 2, 3]), rng.choice([64, 64, 64, 1])
    if family == 4:
        packet = frames.ipv4(src, dst, protocol, body, tos, ttl, frag=rng.choice([0, 0, 0x4000]), good=rng.random() < 0.97)
    else:
        packet = frames.ipv6(src, dst, protocol, body, tos, 0, ttl)
    mac = OWN_MAC if rng.random() < 0.96 else MACS[0]
    # The addresses are those of the configured neighbours: switches learn from such packets, too.
    known = dict(UNDERLAY["neighbours"])
    frame = frames.ethernet(mac, known.get(src) or known[REMOTES[family][1]], 0x0800 if family == 4 else 0x86dd, packet)
    if rng.random() < 0.03:
        frame = frame[:rng.randrange(34, len(frame))]
    return frame


def case(seed):
    """The case that belongs to a seed."""
    rng = random.Random(seed)
    taken, tunnels = set(), []
    for number in range(1, rng.choice([3, 4, 5])):
        made = tunnel(rng, number, taken)
        if made:
            tunnels.append(made)
    pods = [1, 2]
    packets = []
    for _ in range(rng.randrange(6, 14)):
        if rng.random() < 0.5:
            packets.append({"port": f"p1{rng.choice(pods)}", "hex": Maker(rng).frame()})
        else:
            frame = tunnelled(rng, rng.choice(tunnels))
            # Each neighbour stays on its port: one that moves does so at once only where caches are emptied after each packet.
            packets.append({"port": f"p0{1 + frame[11] % 2}", "hex": frame.hex()})
    bridges = [{"name": f"br{n}", "settings": [f"fail_mode={mode}", f"other_config:hwaddr=aa:55:aa:55:00:0{n}"]}
               for n, mode in ((0, "standalone"), (1, "secure"))]
    ports = [{"bridge": f"br{b}", "name": f"p{b}{n}", "ofport": n, "settings": []} for b in (0, 1) for n in (1, 2)]
    return {"seed": str(seed), "protocol": rng.choice(["OpenFlow13", "OpenFlow15"]), "bridges": bridges, "ports": ports, "patches": [],
            "tunnels": tunnels, "underlay": UNDERLAY, "tlv": TLV, "flows": flows(rng, pods, tunnels), "groups": [], "meters": [], "packets": packets}


def is_flooded(case):
    """Whether a packet may go into several tunnels in an undefined order (the reference walks a hash table):
    their outer packets leave by one port."""
    return any(action in ("NORMAL", "FLOOD") for flow in case["flows"] for action in flow["actions"])


def comparable(frame):
    """A frame (hex) without the outer fields that each switch chooses for itself, and the checksums over
    them, in words. They are the UDP source port, and the time of day in ERSPAN version 2. So is the
    identification of IPv4 packets that may be fragmented (the reference has 0). So are the sequence numbers
    of GRE (the reference counts more than the packets that it sends)."""
    data = bytearray.fromhex(frame)
    at = {b"\x08\x00": 34, b"\x86\xdd": 54}.get(bytes(data[12:14]))
    words = []
    if at is None or len(data) < at + 8 or at == 34 and data[14] != 0x45:
        return frame
    protocol = data[23] if at == 34 else data[20]
    is_udp = protocol == 17 and int.from_bytes(data[at + 2:at + 4], "big") in UDP_PORTS.values()
    if not is_udp and protocol != 47:
        return frame
    if at == 34 and not data[20] & 0x40:
        words.append("header-right" if frames.checksum(bytes(data[14:34])) == 0 else "header-wrong")
        data[18:20] = data[24:26] = b"\0\0"
    if is_udp:
        family, addresses = (socket.AF_INET, data[26:34]) if at == 34 else (socket.AF_INET6, data[22:54])
        half = len(addresses) // 2
        src, dst = (socket.inet_ntop(family, bytes(a)) for a in (addresses[:half], addresses[half:]))
        length = int.from_bytes(data[at + 4:at + 6], "big")
        udp = bytes(data[at:at + length])
        right = frames.checksum(frames.pseudo(src, dst, 17, length) + udp) == 0
        words.append("udp-none" if udp[6:8] == b"\0\0" else "udp-right" if right else "udp-wrong")
        data[at:at + 2] = data[at + 6:at + 8] = b"\0\0"
    elif data[at] & 0x10:
        if data[at + 2:at + 4] == b"\x22\xeb":
            data[at + 12:at + 16] = bytes(4)
        where = at + 4 + (4 if data[at] & 0x80 else 0) + (4 if data[at] & 0x20 else 0)
        if data[at] & 0x80:
            # The reference sums before it writes the number.
            length = int.from_bytes(data[16:18], "big") - 20 if at == 34 else int.from_bytes(data[18:20], "big")
            right = frames.checksum(bytes(data[at:at + length])) == 0
            data[where:where + 4] = bytes(4)
            words.append("gre-right" if right or frames.checksum(bytes(data[at:at + length])) == 0 else "gre-wrong")
            data[at + 4:at + 6] = b"\0\0"
        data[where:where + 4] = bytes(4)
    return f"{data.hex()} {' '.join(words)}"
