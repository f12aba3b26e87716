"""The directory of results, which bench/report reads."""

import json
import os
import platform
import subprocess
import time

from lab import ROOT


def processor():
    """The name of the processor, or of its architecture if the kernel has no name."""
    with open("/proc/cpuinfo") as file:
        names = [line.partition(": ")[2].strip() for line in file if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit():
    """The commit of this checkout, with a + if files of it are changed."""
    def git(*args):
        return subprocess.run(["git", "-C", ROOT, *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.strip()
    changed = git("status", "--porcelain", "--untracked-files=no")
    return (git("rev-parse", "--short=9", "HEAD") or "unknown") + ("+" if changed else "")


def write(path, part, how, results, **more):
    """Writes the results of a part ("pods", "vhost", "switch", "rules", "loaded"), measured so, with the run that they are of."""
    path = path or os.path.join(ROOT, "target", "bench", time.strftime(f"{part}-%Y%m%d-%H%M%S.json"))
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    run = {"date": time.strftime("%Y-%m-%d %H:%M"), "commit": commit(), "how": how,
           "machine": f"{processor()}, Linux {platform.release().partition('-')[0]}"}
    with open(path, "w") as file:
        json.dump({"part": part, "run": run, "kernel": platform.release(), **more, "results": results},
                  file, indent=1)
        file.write("\n")
    print(f"\nAll numbers: {os.path.relpath(path)}")
