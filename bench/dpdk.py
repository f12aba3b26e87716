"""Debian's Open vSwitch with DPDK, unpacked to a private directory: the installed Open vSwitch stays as it is."""

import glob
import os
import re
import subprocess

from lab import ROOT

PACKAGE = "openvswitch-switch-dpdk"
# Packages with the libraries that the daemon loads.
WANTED = re.compile(r"^(openvswitch-switch-dpdk|librte-.*|libnl-.*|libibverbs1|ibverbs-providers|libfdt1|libbpf1|libxdp1|"
                    r"libpcap0\.8|libunbound8|libnuma1|libisal2|libjansson4)$")


class Unavailable(Exception):
    """The package cannot be had; the text is the reason."""


def run(*argv, cwd=None):
    done = subprocess.run(argv, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600,
                          stdin=subprocess.DEVNULL, env=dict(os.environ, LC_ALL="C"))
    if done.returncode:
        raise Unavailable(f"{' '.join(argv[:3])}: {done.stderr.strip()[-400:]}")
    return done.stdout


class Dpdk:
    """The daemon's path and the environment that it needs to start."""

    def __init__(self, root):
        self.daemon = f"{root}/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
        rings = sorted(glob.glob(f"{root}/usr/lib/*/librte_mempool_ring.so.*"))
        if not os.access(self.daemon, os.X_OK) or not rings:
            raise Unavailable(f"no daemon or no memory pool driver in {root} (remove it to fetch it anew)")
        # Drivers are plug-ins that DPDK loads from a directory of the system; a preloaded one registers itself.
        self.env = {"LD_LIBRARY_PATH": os.path.dirname(rings[0]), "LD_PRELOAD": rings[0]}


def fetch():
    """Downloads and unpacks the packages once, to target/bench/ovs-dpdk."""
    root = os.path.join(ROOT, "target", "bench", "ovs-dpdk")
    done = os.path.join(root, ".complete")
    if not os.path.exists(done):
        debs = os.path.join(root, "debs")
        os.makedirs(debs, exist_ok=True)
        # An empty package status: a dependency that is installed here may lack the drivers.
        plan = run("apt-get", "install", "-s", "-o", "Debug::NoLocking=1", "-o", "Dir::State::status=/dev/null",
                   PACKAGE)
        names = [line.split()[1] for line in plan.splitlines() if line.startswith("Inst ")]
        names = [name for name in names if WANTED.match(name)]
        run("apt-get", "download", *names, cwd=debs)
        for name in sorted(os.listdir(debs)):
            if name.endswith(".deb"):
                run("dpkg", "-x", os.path.join(debs, name), root)
        found = Dpdk(root)
        with open(done, "w") as file:
            file.write("\n".join(names) + "\n")
        return found
    return Dpdk(root)


class Hugepages:
    """2 MiB pages for the time of a measurement; the previous number is restored."""

    PATH = "/proc/sys/vm/nr_hugepages"

    def __init__(self, count):
        self.count, self.before = count, None

    @classmethod
    def now(cls):
        with open(cls.PATH) as file:
            return int(file.read())

    def write(self, count):
        with open(self.PATH, "w") as file:
            file.write(f"{count}\n")

    def __enter__(self):
        self.before = self.now()
        if self.count:
            self.write(self.before + self.count)
            if self.now() < self.before + self.count:
                # Compaction joins the free memory, which is in small pieces.
                with open("/proc/sys/vm/compact_memory", "w") as file:
                    file.write("1\n")
                self.write(self.before + self.count)
            have = self.now()
            if have < self.before + self.count:
                self.write(self.before)
                raise Unavailable(f"only {have - self.before} of {self.count} hugepages could be had")
        return self

    def __exit__(self, *_):
        if self.count:
            self.write(self.before)
