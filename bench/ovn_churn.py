#!/usr/bin/env python3
"""Changes the access list of a port without traffic, RATE times a second, until it is ended. Then prints the
number of changes.

    bench/ovn_churn.py NORTHBOUND RATE

Each change is one transaction in the northbound database; ovn-controller sends what follows from it to the switch.
"""

import json
import signal
import subprocess
import sys
import time

RULE = ["ls1", "to-lport", "1001", 'outport == "other" && tcp.dst == 7777']
ended = []


def main():
    database, rate = sys.argv[1], float(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
    began, changes = time.monotonic(), 0

    def nbctl(*words):
        subprocess.run(["ovn-nbctl", f"--db={database}", "--timeout=30", *words], check=True, stdin=subprocess.DEVNULL)
    while not ended:
        nbctl("acl-del" if changes % 2 else "acl-add", *(RULE if changes % 2 else [*RULE, "drop"]))
        changes += 1
        time.sleep(max(0.0, began + changes / rate - time.monotonic()))
    print(json.dumps({"changes": changes, "seconds": time.monotonic() - began}), flush=True)
    if changes % 2:
        nbctl("acl-del", *RULE)


if __name__ == "__main__":
    main()
