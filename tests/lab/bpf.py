"""Another program's packet program at a network device: it passes every packet on."""

import ctypes
import os
import platform
import socket
import struct

_LIBC = ctypes.CDLL(None, use_errno=True)
_SYS_BPF = {"x86_64": 321, "aarch64": 280}.get(platform.machine())
_PROG_LOAD, _LINK_CREATE = 5, 28
_INFO_BY_FD, _LINK_BY_ID, _NEXT_LINK, _LINK_DETACH = 15, 30, 31, 34
# Hooks: the type of program, its attach type, its return code for "go on" (linux/bpf.h).
HOOKS = {"xdp": (6, 37, 2), "tcx ingress": (3, 46, 0xffffffff), "tcx egress": (3, 47, 0xffffffff)}


def _bpf(command, attr):
    buffer = ctypes.create_string_buffer(attr, max(len(attr), 128))
    fd = _LIBC.syscall(_SYS_BPF, command, buffer, len(buffer))
    if fd < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd


def attach(lab, ns, dev, place):
    """The descriptor of a link: the program leaves when it is closed."""
    kind, attach_type, verdict = HOOKS[place]
    code = struct.pack("=BBhI", 0xb4, 0, 0, verdict) + struct.pack("=BBhI", 0x95, 0, 0, 0)
    insns, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL")

    def make():
        ifindex = socket.if_nametoindex(dev)
        load = struct.pack("=IIQQIIQII16sII", kind, 2, ctypes.addressof(insns), ctypes.addressof(licence), 0, 0, 0, 0, 0, b"", 0, attach_type)
        program = _bpf(_PROG_LOAD, load)
        try:
            return _bpf(_LINK_CREATE, struct.pack("=IIII", program, ifindex, attach_type, 0))
        finally:
            os.close(program)
    return lab.net.socket(ns, make)


def detach(program):
    """Detaches a program by its number (`ip link show`), from outside of the process that has attached it."""
    number, done = 0, 0
    while True:
        attr = ctypes.create_string_buffer(struct.pack("=II", number, 0), 128)
        if _LIBC.syscall(_SYS_BPF, _NEXT_LINK, attr, 128) < 0:
            break
        number, = struct.unpack_from("=I", attr.raw, 4)
        link = _bpf(_LINK_BY_ID, struct.pack("=I", number))
        try:
            info = ctypes.create_string_buffer(256)
            _bpf(_INFO_BY_FD, struct.pack("=IIQ", link, len(info), ctypes.addressof(info)))
            if struct.unpack_from("=I", info.raw, 8)[0] == program:
                _bpf(_LINK_DETACH, struct.pack("=I", link))
                done += 1
        finally:
            os.close(link)
    assert done == 1, f"{done} links of program {program}"
