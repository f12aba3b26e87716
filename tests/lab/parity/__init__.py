"""Checks that controllers count on with Open vSwitch's kernel datapath: the same scripts run on it and on Heddle.

`make lab PARITY=1` runs these scripts in an emulated machine (tests/lab/guests/parity.py). Each also runs alone, as
root, on a machine whose kernel has the modules: HEDDLED names the daemon.
"""
