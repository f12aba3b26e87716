"""A control group in every hierarchy: what a container runtime makes is below it, and goes with it.

runc puts containers below the group of its caller, whatever the runtime's settings are. A container that is
killed from outside leaves its group behind.
"""

import contextlib
import os

from .shell import wait_for


class Cgroups:
    """Groups of this name below those of the caller; none where the machine has no control groups to give."""

    def __init__(self, name):
        self.paths = [f"{home}/{name}" for home in homes()]

    def enter(self):
        """Moves the calling process there, and with it all that it starts: for `preexec_fn`."""
        for path in self.paths:
            if make(path):
                with contextlib.suppress(OSError), open(f"{path}/cgroup.procs", "w") as file:
                    file.write(str(os.getpid()))

    def remove(self, others=()):
        """Removes them with all below, as soon as they have no process.

        others: containers. Where both versions of control groups are mounted, runc puts them elsewhere in the
        second.
        """
        elsewhere = [f"{os.path.dirname(path)}/{name}" for path in self.paths for name in others]
        paths = (*self.paths, *elsewhere)
        wait_for("control groups to be empty", lambda: all([remove(path) for path in paths]))


def homes():
    """The caller's group in each hierarchy."""
    with open("/proc/self/cgroup") as file:
        own = [line.rstrip("\n").split(":", 2)[1:] for line in file]
    with open("/proc/mounts") as file:
        mounts = [line.split() for line in file]
    for names, path in own:
        for _, place, kind, options, *_ in mounts:
            first = kind == "cgroup" and set(names.split(",")) <= set(options.split(","))
            if first if names else kind == "cgroup2":
                home = f"{place}{path.rstrip('/')}"
                yield home if os.path.isdir(home) else place
                break


def make(path):
    """Whether the group could be made. A group of processors takes no process before it has processors."""
    try:
        os.makedirs(path, exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if os.path.exists(f"{path}/{name}") and os.path.exists(f"{os.path.dirname(path)}/{name}"):
                with open(f"{os.path.dirname(path)}/{name}") as above, open(f"{path}/{name}", "w") as own:
                    own.write(above.read())
        return True
    except OSError:
        return False


def remove(path):
    """Whether the group is gone, with all below."""
    for place, _, _ in os.walk(path, topdown=False):
        try:
            os.rmdir(place)
        except OSError:
            return False
    return True
