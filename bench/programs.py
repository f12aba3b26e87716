"""The small programs beside these scripts, which plain `rustc` builds."""

import os
import subprocess

HERE = os.path.dirname(os.path.abspath(__file__))


def built(name):
    """The program that NAME.rs makes."""
    binary, source = os.path.join(os.path.dirname(HERE), "target", "bench", name), os.path.join(HERE, f"{name}.rs")
    if not os.path.exists(binary) or os.path.getmtime(binary) < os.path.getmtime(source):
        os.makedirs(os.path.dirname(binary), exist_ok=True)
        subprocess.run(["rustc", "-O", "--edition", "2024", "-o", binary, source], check=True, timeout=120)
    return binary
