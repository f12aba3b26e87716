#!/usr/bin/env python3
"""A real Linux guest on a vhost-user port, if `make lab` has fetched QEMU and the kernel before; it fetches nothing itself."""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "lab", "guests"))
os.environ["LAB_FETCH"] = "0"

from quick import scenario_smoke  # noqa: E402,F401
from lab.guestlab import main  # noqa: E402

if __name__ == "__main__":
    main()
