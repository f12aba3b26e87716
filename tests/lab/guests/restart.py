#!/usr/bin/env python3
"""Violent ends: the switch and QEMU are killed under traffic, in either order, and come back."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import signal
import time

from lab.guestlab import GuestLab, address, main
from lab.measure import Iperf, Pings, Stream
from lab.runner import limit


def kill_switch(g, down=0.5):
    g.switch.stop_daemon(signal.SIGKILL)
    time.sleep(down)
    g.switch.start_daemon(timeout=60)


def switch_dies(g, pod, guest, what):
    """kill -9 of the switch: the guest sees the link flap, and all running traffic continues by itself."""
    flaps = guest.carrier_changes()
    stream = [Stream(g.net, pod, guest, address(2), to_guest, 7000 + to_guest) for to_guest in (False, True)]
    running = Iperf(g.net, pod, guest, address(2), 14)
    pings = Pings(g.net, pod, address(2))
    time.sleep(3)
    for _ in range(2):
        kill_switch(g)
        pings.wait_answer(25)
        for each in stream:
            each.goes_on()
        time.sleep(1)
    rate, _ = running.result()
    sent, lost, gap = pings.stop()
    total = sum(each.finish() for each in stream)
    flaps = guest.carrier_changes() - flaps
    g.tell(f"{what}: switch killed twice: longest silence {gap:.0f} ms (0.5 s of it the switch was down), {lost} of {sent} pings "
           f"lost, carrier changes in the guest {flaps}, iperf3 {rate:.0f} Mbit/s on average, {total:.0f} MiB "
           "compared")
    assert flaps >= 2, "the guest did not see its link go and come back"


def qemu_dies(g, pod, other, guest, what):
    """kill -9 of QEMU under traffic: others on the switch lose nothing, and the next QEMU is served at once."""
    others = Pings(g.net, pod, other)
    running = Iperf(g.net, pod, guest, address(2), 20)
    time.sleep(3)
    guest.kill()
    running.process.kill()
    running.process.communicate()
    began = time.monotonic()
    guest.start()
    guest.address(address(2) + "/24")
    g.meet(pod, address(2))
    took = time.monotonic() - began
    g.net.ping(pod, address(2), count=20)
    _, lost, gap = others.stop()
    g.tell(f"{what}: QEMU killed: booted again and answering after {took:.1f} s; between two pods meanwhile {lost} pings lost, "
           f"longest silence {gap:.0f} ms")
    assert lost == 0 or g.switch.is_reference, "another port suffered"


def both_die(g, pod, guest, switch_first, what):
    """Both are gone at once; either comes back first."""
    if switch_first:
        g.switch.stop_daemon(signal.SIGKILL)
        guest.kill()
        guest.launch()
        time.sleep(1)
        g.switch.start_daemon(timeout=60)
    else:
        guest.kill()
        g.switch.stop_daemon(signal.SIGKILL)
        g.switch.start_daemon(timeout=60)
        time.sleep(1)
        guest.launch()
    guest.wait_ready(90)
    guest.address(address(2) + "/24")
    g.meet(pod, address(2))
    g.net.ping(pod, address(2), count=20)
    rate, _ = Iperf(g.net, pod, guest, address(2), 3, backwards=True).result()
    g.tell(f"{what}: both killed, {'QEMU' if switch_first else 'the switch'} back first: guest to pod {rate:.0f} Mbit/s")


def violent_ends(lab, client, **properties):
    g = GuestLab(lab)
    pod, _ = g.veth("pod", 1), g.veth("other", 9)
    guest = g.guest("vm", 2, client, nic=properties)
    g.meet(pod, address(2))
    what = "packed" if properties else "split"
    switch_dies(g, pod, guest, what)
    qemu_dies(g, pod, address(9), guest, what)
    both_die(g, pod, guest, True, what)
    both_die(g, pod, guest, False, what)


@limit(300)
def scenario_client_port_split(lab):
    violent_ends(lab, True)


@limit(300)
def scenario_client_port_packed(lab):
    violent_ends(lab, True, packed="on")


@limit(300)
def scenario_server_port_split(lab):
    violent_ends(lab, False)


@limit(300)
def scenario_server_port_packed(lab):
    violent_ends(lab, False, packed="on")


if __name__ == "__main__":
    main()
