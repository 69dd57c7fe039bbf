"""Two physical copies of a cluster's relations, page by page.

Every page that differs must be among the changes, hint bits aside. What the
reader of changes() must find out by itself (new files, blocks beyond the
older copy's length) is counted apart.
"""

import struct

from cluster import PAGE, relation_files

# infomask bits that say how a transaction ended: HEAP_XMIN_COMMITTED to
# HEAP_XMAX_INVALID
HEAP_HINTS = 0x0F00
LP_NORMAL = 1


def without_hints(page):
    """The page with all that may change without WAL set to nothing."""
    page = bytearray(page)
    lower, upper, special = struct.unpack_from("<HHH", page, 12)
    if upper == 0 or not 24 <= lower <= upper <= special <= PAGE:
        return bytes(page)
    # checksum, the flags "free lines" and "page full", the prune xid
    page[8:10] = b"\0\0"
    page[10] &= ~3
    page[20:24] = b"\0\0\0\0"
    is_heap = special == PAGE
    for at in range(24, lower, 4):
        pointer, = struct.unpack_from("<I", page, at)
        offset, flags, length = pointer & 0x7FFF, pointer >> 15 & 3, pointer >> 17
        if is_heap and flags == LP_NORMAL and length >= 23 and offset + 22 <= PAGE:
            mask, = struct.unpack_from("<H", page, offset + 20)
            struct.pack_into("<H", page, offset + 20, mask & ~HEAP_HINTS)
        elif not is_heap:
            # index entries found dead are flagged so
            struct.pack_into("<I", page, at, pointer & ~(3 << 15))
    if PAGE - special == 16:
        # btree, hash, gist: "has garbage", and btree's vacuum cycle
        page[PAGE - 4:] = b"\0\0\0\0"
    return bytes(page)


class Result:
    """What a comparison found."""

    def __init__(self):
        self.pages = 0
        self.differing = 0
        self.marked = 0
        self.hints_only = 0
        self.beyond = 0
        self.new_files = 0
        self.missed = []

    def add(self, other):
        for name in ("pages", "differing", "marked", "hints_only", "beyond", "new_files"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.missed += other.missed

    def __str__(self):
        return (f"{self.pages} pages, {self.differing} differ, {self.marked} marked,"
                f" {len(self.missed)} MISSED; {self.hints_only} differ in hint bits only,"
                f" {self.beyond} are beyond the older length, {self.new_files} files are new")


def compare_file(key, old, new, changes, result):
    old_bytes, new_bytes = old.read_bytes(), new.read_bytes()
    old_pages, new_pages = len(old_bytes) // PAGE, len(new_bytes) // PAGE
    result.pages += new_pages
    result.beyond += max(0, new_pages - old_pages)
    if old_bytes == new_bytes:
        return
    for block in range(min(old_pages, new_pages)):
        before = old_bytes[block * PAGE:(block + 1) * PAGE]
        after = new_bytes[block * PAGE:(block + 1) * PAGE]
        if before == after:
            continue
        if changes.has(*key, block):
            result.differing += 1
            result.marked += 1
        elif key[1] == "main" and without_hints(before) == without_hints(after):
            result.hints_only += 1
        else:
            result.differing += 1
            result.missed.append((*key, block))


def compare(old, new, changes):
    result = Result()
    old_files = relation_files(old)
    for key, path in relation_files(new).items():
        if key in old_files:
            compare_file(key, old_files[key], path, changes, result)
        else:
            result.new_files += 1
    return result
