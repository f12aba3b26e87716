"""A Python environment of their own for the controllers that are tried, below target/: nothing of the system's Python changes.

Versions are pinned: what a controller sends is what is tested, and results are compared between runs.
"""

import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
# Faucet requires the release of os-ken that it was tested with; that brings the switch tester too.
PACKAGES = ("faucet==1.10.12", "setuptools<81")


class Unavailable(Exception):
    """The packages could not be had; the text is the reason."""


def prepare(say=print):
    """The directory of the environment's programs, made on first use (a minute, and a connection to PyPI)."""
    place = os.path.join(ROOT, "target", "controllers")
    mark = os.path.join(place, "complete")
    wanted = "\n".join(PACKAGES)
    if not (os.path.exists(mark) and open(mark, encoding="utf-8").read() == wanted):
        say(f"installing {', '.join(PACKAGES)} to {place}")
        shutil.rmtree(place, ignore_errors=True)
        try:
            run(sys.executable, "-m", "venv", place)
            run(f"{place}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES)
        except (OSError, subprocess.SubprocessError) as error:
            raise Unavailable(f"{error}\n{getattr(error, 'stdout', '') or ''}") from None
        with open(mark, "w", encoding="utf-8") as file:
            file.write(wanted)
    return f"{place}/bin"


def run(*argv):
    subprocess.run(argv, check=True, timeout=600, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def package_directory(programs, name):
    """The directory of a package of the environment."""
    code = f"import importlib.util as u; print(u.find_spec({name!r}).submodule_search_locations[0])"
    return subprocess.run([f"{programs}/python", "-c", code], check=True, timeout=60, text=True,
                          stdout=subprocess.PIPE).stdout.strip()
