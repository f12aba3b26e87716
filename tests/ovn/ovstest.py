"""OVN's test program `ovstest`, with which tests of the main suite make packets.

The program is built from the source of the suite, and needs a built Open vSwitch: that of Debian's package
openvswitch-source. Both are built once, below target/. This takes 5 minutes or more.
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(os.path.dirname(HERE), "conformance")]
from suite import BUILD_LIMIT_S, call, prepare  # noqa: E402

NAME = "ovstest"
PROGRAM = f"tests/{NAME}"
LIBRARIES = ("lib/libopenvswitch.la", "ovsdb/libovsdb.la")
WANTED = "include Makefile\nwanted: $(BUILT_SOURCES)\n\t$(MAKE) $(FILES)\n"


def make(directory, *files):
    """Builds these files of a configured tree, after its generated sources."""
    with open(os.path.join(directory, "wanted.mk"), "w") as file:
        file.write(WANTED)
    words = ["make", f"-j{os.cpu_count() or 1}", "-f", "wanted.mk", "wanted", f"FILES={' '.join(files)}"]
    call([*words, "CFLAGS=-O0"], directory, f"building in {directory}", BUILD_LIMIT_S)


def build(source, home):
    """The path of `ovstest` of OVN's source, built below `home` if it is not there yet."""
    program = os.path.join(home, PROGRAM)
    if not os.access(program, os.X_OK):
        print("building ovstest and the Open vSwitch that it needs (5 minutes or more) ...", flush=True)
        os.makedirs(home, exist_ok=True)
        ovs = prepare(ROOT).directory
        make(ovs, *LIBRARIES)
        if not os.path.exists(os.path.join(source, "configure")):
            call(["autoreconf", "--install", "--force"], source, "autoreconf (autoconf, automake, libtool)")
        configure = os.path.join(source, "configure")
        call([configure, "--disable-ssl", f"--with-ovs-source={ovs}"], home, "configuring OVN", BUILD_LIMIT_S)
        make(home, PROGRAM)
    return program
