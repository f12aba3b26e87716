"""A machine within the machine, for programs that want all of one: namespaces of processes, mounts, networks.

However the programs end, nothing stays. Processes end with the first one of their namespace, which ends with
its caller; mounts and networks end with them; files are in memory. The kernel's settings that a kubelet
changes are plain files inside. No namespace keeps control groups in, so there is one group above all.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile

from lab.cgroups import Cgroups
from lab.shell import wait_for

# Fixed places of a kubelet, of container runtimes and of their plug-ins; /run, which a reboot empties.
PRIVATE = ("/run", "/var/log", "/var/lib/kubelet", "/var/lib/cni")
# Settings of the whole machine that a kubelet writes.
SETTINGS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys",
            "kernel/keys/root_maxbytes")


def enclosed(*argv):
    """Runs a program inside, with the directory for its files as another argument; its status."""
    place = tempfile.mkdtemp(prefix="heddle-k8s-")
    made = [path for path in PRIVATE if not os.path.isdir(path)]
    for path in made:
        os.makedirs(path)
    groups = Cgroups(f"heddle-k8s-{os.getpid()}")
    child = None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        words = ("setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--net", "--ipc", "--fork",
                 "--mount-proc", "--kill-child", *argv, place)
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, preexec_fn=groups.enter, start_new_session=True)
        return child.wait()
    finally:
        # Ctrl-C once more would leave half of it.
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, signal.SIG_IGN)
        if child:
            end(child)
        groups.remove()
        for path in reversed(made):
            os.rmdir(path)
        shutil.rmtree(place)


def end(child):
    """Ends the first process of the namespace, and waits until the kernel has ended the others."""
    first = subprocess.run(["ps", "--no-headers", "-o", "pid", "--ppid", str(child.pid)], capture_output=True,
                           text=True).stdout.split()
    child.kill()
    child.wait()
    wait_for("the processes inside to end", lambda: not any(os.path.exists(f"/proc/{pid}") for pid in first))


def furnish(place):
    """Inside, first: private files. The process becomes the parent of orphans, its child returns."""
    def mount(*words):
        subprocess.run(["mount", *words], check=True)
    # Shared mounts, as under systemd: a new mount namespace sees later mounts of others.
    mount("--make-rshared", "/")
    for path in (place, *PRIVATE):
        mount("-t", "tmpfs", "-o", "mode=755", "heddle-k8s", path)
    # Otherwise runc would leave groups of containers here, beside those below our own.
    subprocess.run(["umount", "/sys/fs/cgroup/unified"], capture_output=True)
    os.makedirs("/run/netns")
    for name in SETTINGS:
        copy = f"{place}/{name.replace('/', '.')}"
        shutil.copyfile(f"/proc/sys/{name}", copy)
        mount("--bind", copy, f"/proc/sys/{name}")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    tempfile.tempdir = os.environ["TMPDIR"] = place
    child = os.fork()
    if child == 0:
        return
    while True:
        pid, status = os.wait()
        if pid == child:
            # Remaining processes end with this one.
            os._exit(os.waitstatus_to_exitcode(status) & 0xff)


def mounts():
    """Mounts in order: number of the mount -> path. Two may be at one path."""
    with open("/proc/self/mountinfo") as file:
        return {int(words[0]): words[4] for words in map(str.split, file)}


def power_off(kept_mounts):
    """Inside: ends all other processes, network namespaces, mounts but those to keep; empties /run."""
    def others():
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            try:
                with open(f"/proc/{pid}/stat") as file:
                    state = file.read().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if pid not in (1, os.getpid()) and state not in "ZX":
                yield pid

    def killed():
        left = list(others())
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        return not left
    wait_for("all processes to end", killed)
    for name in os.listdir("/run/netns"):
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
    for number, path in reversed(mounts().items()):
        if number not in kept_mounts:
            subprocess.run(["umount", "-l", path], capture_output=True)
    for name in os.listdir("/run"):
        path = f"/run/{name}"
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)
    os.makedirs("/run/netns")
