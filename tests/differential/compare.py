"""Comparison of two daemons' results of one case."""

import re

from execute import split_actions


def differences(left, right):
    """[(kind, text)]; empty when nothing that a packet or a client can see differs."""
    found = []

    def add(kind, where, a, b):
        found.append((kind, f"{where}\n  left:  {a}\n  right: {b}"))
    for bridge in left["rejected"]:
        if left["rejected"][bridge] != right["rejected"][bridge]:
            add("accepted flows", f"{bridge}: indices of refused flows", left["rejected"][bridge],
                right["rejected"][bridge])
    for index, (a, b) in enumerate(zip(left["delivered"], right["delivered"])):
        if a != b:
            add("delivery", f"packet {index} taken by netdev-dummy/receive", a, b)
    for index, (a, b) in enumerate(zip(left["traces"], right["traces"])):
        if a != b and meaning(a) != meaning(b):
            add("trace", f"packet {index}: datapath actions", a, b)
    for port in left["out"]:
        a, b = ([without_checksum_of_fragments(frame) for frame in side["out"][port]] for side in (left, right))
        if a != b:
            at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
            add("packets out", f"{port}: {len(a)} and {len(b)} frames, the first that differs is number {at}",
                a[at] if at < len(a) else "none", b[at] if at < len(b) else "none")
    for bridge in left["flows"]:
        a, b = left["flows"][bridge], right["flows"][bridge]
        if a != b:
            add("flows", f"{bridge}: dump-flows", "\n         ".join([x for x in a if x not in b] or ["-"]),
                "\n         ".join([x for x in b if x not in a] or ["-"]))
    for bridge in left["groups"]:
        a, b = left["groups"][bridge], right["groups"][bridge]
        if worded_differently(left, right):
            a, b = without_bytes(a), without_bytes(b)
        if a != b:
            add("groups", f"{bridge}: groups and meters", "\n         ".join([x for x in a if x not in b] or ["-"]),
                "\n         ".join([x for x in b if x not in a] or ["-"]))
    if left["connections"] != right["connections"]:
        a, b = left["connections"], right["connections"]
        add("connections", "dpctl/dump-conntrack", "\n         ".join([x for x in a if x not in b] or ["-"]),
            "\n         ".join([x for x in b if x not in a] or ["-"]))
    for bridge in left["fdb"]:
        if left["fdb"][bridge] != right["fdb"][bridge]:
            add("fdb", f"{bridge}: fdb/show", left["fdb"][bridge], right["fdb"][bridge])
    return found


def without_checksum_of_fragments(frame):
    """A frame (hex) without the two bytes that the reference spoils in later IPv4 fragments.

    When it rewrites an address it "updates" a TCP or UDP checksum there, although a later fragment has no
    such header. It changes two bytes of the payload. Heddle leaves them alone.
    """
    if " " in frame:
        return frame  # tunnels' inner packets come unchanged, or are compared there
    data = bytearray.fromhex(frame)
    at = 12
    while data[at:at + 2] in (b"\x81\x00", b"\x88\xa8"):
        at += 4
    ip = at + 2
    if data[at:at + 2] != b"\x08\x00" or len(data) < ip + 20 or not int.from_bytes(data[ip + 6:ip + 8], "big") & 0x1fff:
        return frame
    checksum = {6: 16, 17: 6}.get(data[ip + 9])
    if checksum is not None:
        where = ip + (data[ip] & 15) * 4 + checksum
        data[where:where + 2] = bytes(len(data[where:where + 2]))
    return data.hex()


def without_bytes(lines):
    """Counters without bytes. A tag is pushed or popped before an output, not before a meter. So a meter behind a flood
    counts the tag or not, by the order of the flood's ports (see meaning())."""
    return [re.sub(r"byte(?:_in)?_count[:=]\d+", "", line) for line in lines]


def worded_differently(left, right):
    """Number of traces that have the same meaning in other words."""
    return sum(a != b and meaning(a) == meaning(b) for a, b in zip(left["traces"], right["traces"]))


def meaning(actions):
    """Outputs of actions, without order and rewrites.

    The order in which a flood serves its ports is not defined (OVS walks a hash table). The pushes and pops
    of tags depend on it, and so does the last clone, which needs no wrapping. The frames that really come out
    of each port are compared byte by byte besides.
    """
    items = []
    for item in split_actions(actions):
        if item.startswith("clone(") and item.endswith(")"):
            items += meaning(item[len("clone("):-1])
        elif not item.startswith(("set(", "push_", "pop_")):
            items.append(item)
    return sorted(items)
