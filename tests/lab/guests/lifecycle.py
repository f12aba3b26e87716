#!/usr/bin/env python3
"""Other events in a guest's life: jumbo frames, a driver that comes and goes, a stopped guest, a port
deleted."""

import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
from lab.guestlab import GuestLab, address, main
from lab.measure import Iperf, Pings, Stream
from lab.runner import limit


@limit(150)
def scenario_jumbo_frames(lab):
    """mtu_request on the port, host_mtu in QEMU (NET_SET_MTU): whole packets of 9000 bytes."""
    g = GuestLab(lab)
    pod = g.pod()
    path = g.port("vm", True, column=["--", "set", "interface", "vm", "mtu_request=9000"])
    g.switch.vsctl("set", "interface", "pod0", "mtu_request=9000")
    guest = g.guest("vm", 2, path=path, nic={"host_mtu": 9000})
    mtu = guest.run("cat /sys/class/net/eth0/mtu").strip()
    assert mtu == "9000", f"the guest's MTU is {mtu}"
    g.net.ip(pod, "link", "set", "pod0", "mtu", "9000")
    g.meet(pod, address(2))
    g.net.ping(pod, address(2), count=10, size=8972, df=True)
    rate, _ = Iperf(g.net, pod, guest, address(2), 3).result()
    g.tell(f"pings of 9000 bytes answered, pod to guest {rate:.0f} Mbit/s")


@limit(200)
def scenario_driver_comes_and_goes(lab):
    """The driver is unbound and bound, and the device set down and up, under traffic: rings stop and start anew."""
    g = GuestLab(lab)
    pod = g.pod()
    guest = g.guest("vm", 2)
    g.meet(pod, address(2))
    pings = Pings(g.net, pod, address(2))
    for _ in range(5):
        guest.run("cd /sys/bus/virtio/drivers/virtio_net && echo virtio0 >unbind && sleep 0.2 && echo virtio0 >bind")
        guest.address(address(2) + "/24")
        pings.wait_answer()
    for _ in range(5):
        guest.run("ip link set eth0 down; sleep 0.2; ip link set eth0 up")
        pings.wait_answer()
    pings.stop()
    g.net.ping(pod, address(2), count=20)
    rate, _ = Iperf(g.net, pod, guest, address(2), 3, backwards=True).result()
    g.tell(f"driver bound anew five times, device down and up five times; then guest to pod {rate:.0f} Mbit/s")


def stands_still(lab, stop, go):
    g = GuestLab(lab)
    pod = g.veth("pod", 1)
    g.veth("other", 9)
    guest = g.guest("vm", 2)
    g.meet(pod, address(2))
    streams = [Stream(g.net, pod, guest, address(2), to_guest, 7000 + to_guest) for to_guest in (False, True)]
    time.sleep(2)
    stop(guest)
    others = Pings(g.net, pod, address(9))
    # More than fits into the ring, to a guest that takes nothing, while the others' packets must pass.
    g.net.run(pod, "ping", "-n", "-q", "-i", "0.002", "-c", "1500", "-s", "1400", "-W", "1", address(2), check=False)
    _, lost, gap = others.stop()
    go(guest)
    for stream in streams:
        stream.goes_on()
    total = sum(stream.finish() for stream in streams)
    g.net.ping(pod, address(2), count=20)
    g.tell(f"meanwhile between two pods {lost} pings lost, longest silence {gap:.0f} ms; then it went on, {total:.0f} MiB compared")
    assert lost == 0 or g.switch.is_reference, "another port suffered"


@limit(180)
def scenario_paused_by_qemu(lab):
    """QEMU's monitor stops the guest: the rings are taken from the switch and given back."""
    stands_still(lab, lambda guest: guest.control("stop"), lambda guest: guest.control("cont"))


@limit(180)
def scenario_frozen_with_its_qemu(lab):
    """SIGSTOP: the rings stay with the switch, the guest takes no packets, and the session gets no reply."""
    stands_still(lab, lambda guest: guest.process.send_signal(signal.SIGSTOP),
                 lambda guest: guest.process.send_signal(signal.SIGCONT))


@limit(200)
def scenario_port_deleted_and_added(lab):
    """Under traffic; and the switch ended in good order."""
    g = GuestLab(lab)
    pod = g.veth("pod", 1)
    guest = g.guest("vm", 2)
    g.meet(pod, address(2))
    streams = [Stream(g.net, pod, guest, address(2), to_guest, 7000 + to_guest) for to_guest in (False, True)]
    for _ in range(3):
        time.sleep(1)
        g.switch.vsctl("del-port", "br0", "vm")
        time.sleep(0.5)
        g.port("vm")
        for stream in streams:
            stream.goes_on()
    g.switch.stop_daemon()
    g.switch.start_daemon(timeout=60)
    for stream in streams:
        stream.goes_on()
    total = sum(stream.finish() for stream in streams)
    g.tell(f"port deleted and added three times, switch restarted: {total:.0f} MiB compared")


if __name__ == "__main__":
    main()
