"""The memory of glibc's heap."""

import ctypes


class MallInfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``, which has ten sizes."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
    ]


libc = ctypes.CDLL(None)
libc.mallinfo2.restype = MallInfo


def used() -> int:
    """Returns the bytes that are allocated."""
    info = libc.mallinfo2()
    return info.uordblks + info.hblkhd
