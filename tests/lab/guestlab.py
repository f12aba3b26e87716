"""Common parts of the scenarios with emulated guests: the chosen switch, its vhost-user ports, figures, and a
verdict.

`--switch heddle` is the default: the daemon that HEDDLED names. `--switch ovs-dpdk` is Debian's DPDK build of
Open vSwitch, fetched by setup-guest, with 1 GiB of hugepages that are given back. With `--no-fetch` (or
LAB_FETCH=0) scenarios skip when something would have to be downloaded first.
"""

import os
import sys

from . import runner
from .guest import CACHE, Guest, Nic, obtain
from .shell import wait_for

HUGEPAGES = "/proc/sys/vm/nr_hugepages"


def main():
    """runner.main() after --switch and --no-fetch have been taken from the command line."""
    words, rest = sys.argv[1:], []
    while words:
        word = words.pop(0)
        if word == "--switch" and words:
            os.environ["LAB_SWITCH"] = words.pop(0)
        elif word.startswith("--switch="):
            os.environ["LAB_SWITCH"] = word.partition("=")[2]
        elif word == "--no-fetch":
            os.environ["LAB_FETCH"] = "0"
        else:
            rest.append(word)
    if which() not in ("heddle", "ovs-dpdk"):
        sys.exit(f"--switch {which()}: heddle and ovs-dpdk are known")
    sys.argv[1:] = rest
    if which() == "ovs-dpdk":
        # Fetched by the first scenario if need be; the runner only wants to see a program.
        os.environ["HEDDLED"] = _dpdk() if os.access(_dpdk(), os.X_OK) else "/bin/true"
    runner.main()


def which():
    return os.environ.get("LAB_SWITCH", "heddle")


def _dpdk():
    return os.path.join(CACHE, "bin", "ovs-vswitchd-dpdk")


class GuestLab:
    """One scenario's switch with bridge br0, its guests and its pods."""

    def __init__(self, lab, *settings):
        """settings: other_config of the switch as KEY=VALUE."""
        self.lab, self.trace, self.net = lab, lab.trace, lab.net
        peer = which() == "ovs-dpdk"
        reason = obtain(*(["ovs-dpdk"] if peer else []), fetch=os.environ.get("LAB_FETCH") != "0")
        if reason:
            raise runner.Skip(reason)
        if peer:
            self._hugepages(512)
            settings = ("dpdk-init=true", 'dpdk-extra="--in-memory --no-telemetry -d '
                        f'{CACHE}/ovs-dpdk/usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0"', "pmd-cpu-mask=1", *settings)
        self.switch = lab.switch(start=False, binary=_dpdk() if peer else None)
        self.switch.start_ovsdb()
        for setting in settings:
            self.switch.vsctl("--no-wait", "set", "Open_vSwitch", ".", f"other_config:{setting}")
        self.switch.start_daemon(timeout=60)
        lab.bridge(self.switch)

    def _hugepages(self, count):
        """DPDK wants them; what the machine had is restored."""
        with open(HUGEPAGES) as file:
            before = file.read()

        def restore():
            with open(HUGEPAGES, "w") as file:
                file.write(before)
        if int(before) < count:
            # Cleanups run before switches are closed, so this one waits for the daemon's end itself.
            self.lab.cleanups.append(lambda: (self.switch.stop_daemon(timeout=5), restore()))
            with open(HUGEPAGES, "w") as file:
                file.write(str(count))
            with open(HUGEPAGES) as file:
                if int(file.read()) < count:
                    raise runner.Skip(f"cannot get {count} hugepages")

    # -- ports and who is on them ----------------------------------------------

    def port(self, name, client=True, column=()):
        """A vhost-user port; client: a dpdkvhostuserclient.  Returns the socket's path."""
        if client:
            path = f"{self.switch.dir}/{name}.sock"
            kind = ["type=dpdkvhostuserclient", f"options:vhost-server-path={path}"]
        else:
            path = f"{self.switch.dir}/{name}"
            kind = ["type=dpdkvhostuser"]
        self.switch.vsctl("add-port", "br0", name, *column, "--", "set", "interface", name, *kind)
        self.switch.wait_column("interface", name, "error", "[]")
        return path

    def guest(self, name, number, client=True, start=True, queues=1, nic=None, path=None, **options):
        """A guest 10.1.0.NUMBER on a port of its own, or on the one whose socket is given."""
        path = path or self.port(name, client)
        guest = Guest(self.trace, name, [self.nic(path, number, client, queues, nic)], **options)
        self.lab.cleanups.append(guest.close)
        if start:
            guest.start()
            guest.address(address(number) + "/24")
        return guest

    def nic(self, path, number, client=True, queues=1, properties=None):
        return Nic(path, f"52:54:00:00:00:{number:02x}", client, queues, **(properties or {}))

    def pod(self, name="pod", number=1):
        """A network namespace 10.1.0.NUMBER with an internal port."""
        return self.lab.internal_pod(self.switch, name, address(number) + "/24")

    def veth(self, name, number):
        """A pod on a veth pair, which outlives the switch; OVS's userspace switch wants checksums done on it."""
        return self.lab.veth_pod(self.switch, name, address(number) + "/24")

    def meet_from(self, guest, target, timeout=40):
        """Like meet(), with the ping inside a guest."""
        wait_for(f"{target} to answer", lambda: guest.run(f"ping -n -c 1 -W 1 {target} | grep -c ttl=", check=False).strip() == "1",
                 timeout)

    def meet(self, ns, target, timeout=40):
        """Waits for the first reply: the switch may still be taking up the port on a busy machine."""
        wait_for(f"{target} to answer", lambda: self.net.ping(ns, target, count=1, lossless=False), timeout)

    def tell(self, text):
        """Prints a figure for the user of the script."""
        self.trace.note(f"== {text}")
        print(f"     {self.lab.name} [{which()}]: {text}", flush=True)


def address(number):
    return f"10.1.0.{number}"
