"""Shares of a guest's silence during a move: of the guest with its emulation, and of the switches.

The times are those of `lab.echoes`: a frame at one of the guest's devices, and the same packet at the server."""


def _earliest(pairs):
    """The first time for each number."""
    found = {}
    for number, at in pairs:
        found[number] = min(at, found.get(number, at))
    return found


def _gap(times, begin, end):
    """The longest time without one of these between two times: (seconds, its begin, its end)."""
    inside = [begin, *sorted(at for at in times if begin < at < end), end]
    return max(((late - early, early, late) for early, late in zip(inside, inside[1:])), default=(0.0, begin, end))


class Change:
    """The guest's first frame at another device.

    `from_s` is the time of its first ping or echo by this device to the server. `to_s` begins when the server sends its
    first datagram afterwards, and ends when a datagram reaches this device. `misplaced` datagrams were sent after the
    change, and reached another device before the guest's next change."""

    def __init__(self, at, old, new, end, shares):
        self.at, self.old, self.new = at, old, new
        first = [f for f in shares.left if f.device == new and at <= f.at < end and (f.kind, f.number) in shares.arrived]
        self.from_s = shares.arrived[first[0].kind, first[0].number] - first[0].at if first else None
        sent = {number for number, when in shares.sent.items() if at <= when < end}
        came = sorted((f.at, f.number) for f in shares.delivered if f.device == new and f.number in sent)
        self.to_s = came[0][0] - min(shares.sent[number] for number in sent) if came else None
        self.misplaced = sum(f.number in sent and f.device != new and f.at < end for f in shares.delivered)

    def text(self, began):
        def shown(seconds):
            return "none came" if seconds is None else f"{1000 * seconds:.1f} ms"
        return (f"at {1000 * (self.at - began):.0f} ms: {self.old} -> {self.new}; first packet to the server {shown(self.from_s)}, "
                f"to this device {shown(self.to_s)}, {self.misplaced} to another device")


class Shares:
    """All frames of a run, in order. mirrors: names of devices that also show the frames of the other ones."""

    def __init__(self, echoes, mirrors=()):
        frames = sorted(echoes.frames)
        direct = {(f.kind, f.number) for f in frames if f.device not in mirrors}
        # A frame of the standby is at the mirror alone. Frames without a number cannot be told apart there.
        frames = [f for f in frames if f.device not in mirrors or f.kind != "other" and (f.kind, f.number) not in direct]
        self.frames = frames
        self.left = [f for f in frames if f.kind in ("ping", "echo")]
        self.delivered = [f for f in frames if f.kind == "datagram"]
        self.arrived = _earliest((("ping", number), at) for at, number in echoes.pings.arrivals)
        self.arrived |= _earliest((("echo", number), at) for at, number in echoes.datagrams.arrivals)
        self.sent = echoes.sent_at
        self.echoed = {number for _, number in echoes.datagrams.arrivals}
        self.changes = self._changes()

    def _changes(self):
        found, device = [], None
        for frame in self.frames:
            if frame.kind != "datagram" and frame.device != device:
                if device:
                    found.append((frame.at, device, frame.device))
                device = frame.device
        ends = [at for at, _, _ in found[1:]] + [float("inf")]
        return [Change(at, old, new, end, self) for (at, old, new), end in zip(found, ends)]

    def ways(self, begin, end):
        """For both directions, from the guest first: packets lost between the guest's device and the server, and the
        longest time on the way, seconds."""
        first = _earliest(((f.kind, f.number), f.at) for f in self.left if begin <= f.at < end)
        sent = {number: at for number, at in self.sent.items() if begin <= at < end}
        came = _earliest((f.number, f.at) for f in self.delivered)
        return [(sum(number not in there for number in here),
                 max((there[number] - at for number, at in here.items() if number in there), default=0.0))
                for here, there in ((first, self.arrived), (sent, came))]

    def phase(self, begin, end):
        """A text: how long the guest was silent, and how much of it is the switches' share."""
        whole, early, late = _gap(self.arrived.values(), begin, end)
        inside = _gap([f.at for f in self.left], early, late)[0]
        unheard = sorted(f.at for f in self.delivered if begin <= f.at < end and f.number not in self.echoed)
        (lost, longest), (lost_to, longest_to) = self.ways(begin, end)
        text = (f"silence at the server {1000 * whole:.0f} ms, of which the guest's devices had no frame for {1000 * inside:.0f}; "
                f"switches: {lost} lost, at most {1000 * longest:.1f} ms; ")
        if unheard:
            text += (f"to the guest: {len(unheard)} datagrams reached its device without an echo, within "
                     f"{1000 * (unheard[-1] - unheard[0]):.0f} ms; ")
        return text + f"switches: {lost_to} lost, at most {1000 * longest_to:.1f} ms"

    def worst_s(self):
        """The longest time that the switches took at a change of the device, of all directions."""
        return max((s for c in self.changes for s in (c.from_s, c.to_s) if s is not None), default=0.0)
