#!/usr/bin/env python3
"""Live migration between two QEMU processes on two ports of one switch, under traffic."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
import time

from lab.guest import Guest
from lab.guestlab import GuestLab, address, main
from lab.measure import Iperf, Pings, Stream
from lab.runner import limit


def migrate(source, target, patience=60):
    """Runs the migration; returns QEMU's account of it."""
    source.control("migrate-set-parameters", **{"max-bandwidth": 1 << 33, "downtime-limit": 300})
    source.control("migrate", uri=target.incoming)
    end = time.monotonic() + patience
    while True:
        state = source.control("query-migrate")
        if state["status"] == "completed":
            return state
        if state["status"] in ("failed", "cancelled"):
            raise AssertionError(f"migration {state}")
        if time.monotonic() > end:
            raise AssertionError(f"migration still {state}")
        time.sleep(0.05)


def there_and_back(lab, client=True, load=True, **properties):
    g = GuestLab(lab)
    pod = g.pod()
    guest = g.guest("one", 2, client, nic=properties)
    g.meet(pod, address(2))
    path = g.port("two", client)
    target = Guest(g.trace, "two", [g.nic(path, 2, client, properties=properties)],
                   incoming=f"unix:{g.switch.dir}/migration")
    lab.cleanups.append(target.close)
    target.launch()
    target.wait_ready()
    pings = Pings(g.net, pod, address(2), 0.01)
    pings.wait_answer()
    streams, running = [], None
    if load:
        streams = [Stream(g.net, pod, guest, address(2), to_guest, 7000 + to_guest) for to_guest in (False, True)]
        running = Iperf(g.net, pod, guest, address(2), 12)
    time.sleep(3)
    state = migrate(guest, target)
    target.ident = guest.ident
    guest.kill()
    pings.wait_answer(30)
    time.sleep(2)
    rate = f", iperf3 {running.result()[0]:.0f} Mbit/s on average" if running else ""
    sent, lost, gap = pings.stop()
    total = sum(stream.finish(target) for stream in streams)
    g.net.ping(pod, address(2), count=20)
    target.run("dmesg | grep -iE 'virtio|eth0' | tail -5", check=False)
    g.tell(f"{'under load' if load else 'idle'}{', packed' if 'packed' in properties else ''}: QEMU's downtime {state['downtime']} ms of "
           f"{state['total-time']} ms, {lost} of {sent} pings (every 10 ms) lost, longest silence {gap:.0f} ms{rate}, "
           f"{total:.0f} MiB compared")


@limit(180)
def scenario_idle(lab):
    there_and_back(lab, load=False)


@limit(180)
def scenario_under_load(lab):
    there_and_back(lab)


@limit(180)
def scenario_under_load_packed(lab):
    there_and_back(lab, packed="on")


@limit(180)
def scenario_server_ports(lab):
    there_and_back(lab, client=False)


if __name__ == "__main__":
    main()
