"""Two physical copies of a cluster's relations, page by page.

Every page that differs must be among the changes, or differ only in what
PostgreSQL may bring to the disk without WAL that recovery repeats: the kinds
of docs/adr/0013, which says why nobody misses them; harmless shows it with
servers. What the reader of changes() must find out by itself (new files,
blocks beyond the older copy's length) is counted apart.
"""

import collections
import struct

from cluster import PAGE, SEGMENT_BLOCKS, relation_files

HEADER = 24
# pd_flags
HAS_FREE_LINES, PAGE_FULL, ALL_VISIBLE = 1, 2, 4
# line pointers' flags
LP_NORMAL, LP_DEAD = 1, 3
# infomask bits that say how a transaction ended: HEAP_XMIN_COMMITTED to
# HEAP_XMAX_INVALID; the first two together mean "frozen", which is no hint
HEAP_HINTS, XMIN_FROZEN = 0x0F00, 0x0300
XMIN_HINTS, XMAX_HINTS = 0x0300, 0x0C00
# the page flag that promises dead entries, by access method
HAS_GARBAGE = {"btree": 1 << 6, "gist": 1 << 4, "hash": 1 << 7}
LEAF = {"btree": 1, "gist": 1, "hash": 3}
SPGIST_META, BRIN_EVACUATE, BRIN_REGULAR = 1, 1, 0xF093
LAST_USED = slice(HEADER + 4, HEADER + 4 + 64)


def access_method(page):
    """By the special space, as pg_filedump does; None if the page has no layout."""
    lower, upper, special = struct.unpack_from("<HHH", page, 12)
    if upper == 0 or not HEADER <= lower <= upper <= special <= PAGE:
        return None
    size = PAGE - special
    last, = struct.unpack_from("<H", page, PAGE - 2)
    if size == 0:
        return "heap"
    if size == 16:
        return {0xFF80: "hash", 0xFF81: "gist"}.get(last, "btree")
    if size == 8:
        return "spgist" if last == 0xFF82 else "brin" if last == BRIN_REGULAR else "other"
    return "other"


def clear_u16(page, at, bits):
    value, = struct.unpack_from("<H", page, at)
    struct.pack_into("<H", page, at, value & ~bits)


def line_pointers(page):
    lower, = struct.unpack_from("<H", page, 12)
    for at in range(HEADER, lower, 4):
        pointer, = struct.unpack_from("<I", page, at)
        yield at, pointer & 0x7FFF, pointer >> 15 & 3, pointer >> 17


def is_leaf(page, method):
    """Where entries are flagged as dead: a leaf, or a bucket or overflow page."""
    flags, = struct.unpack_from("<H", page, PAGE - 4)
    return method in LEAF and flags & LEAF[method] != 0


def infomasks(page):
    for _, offset, flags, length in line_pointers(page):
        if flags == LP_NORMAL and length >= 23 and offset + 22 <= PAGE:
            yield offset + 20, struct.unpack_from("<H", page, offset + 20)[0]


def tuple_hints(page, method):
    if method == "heap":
        for at, mask in infomasks(page):
            frozen = XMIN_FROZEN if mask & XMIN_FROZEN == XMIN_FROZEN else 0
            struct.pack_into("<H", page, at, mask & ~HEAP_HINTS | frozen)


def prune_xid(page, method):
    if method == "heap":
        page[20:24] = bytes(4)


def page_full(page, method):
    if method == "heap":
        clear_u16(page, 10, PAGE_FULL)


def free_lines(page, method):
    if method == "heap":
        clear_u16(page, 10, HAS_FREE_LINES)


def dead_entries(page, method):
    if not is_leaf(page, method):
        return
    for at, _, flags, _ in line_pointers(page):
        if flags == LP_DEAD:
            pointer, = struct.unpack_from("<I", page, at)
            struct.pack_into("<I", page, at, pointer & ~(3 << 15) | LP_NORMAL << 15)
    clear_u16(page, PAGE - 4, HAS_GARBAGE[method])


def vacuum_cycle(page, method):
    if method == "btree" and is_leaf(page, method):
        page[PAGE - 2:] = bytes(2)


def evacuated(page, method):
    if method == "brin":
        clear_u16(page, PAGE - 4, BRIN_EVACUATE)


def all_visible(page, method):
    if method == "heap":
        clear_u16(page, 10, ALL_VISIBLE)


def last_used_pages(page, method):
    if method == "spgist" and page[PAGE - 8] & SPGIST_META:
        page[LAST_USED] = bytes(64)


def hint_lsn(page, _):
    page[0:8] = bytes(8)


# The kinds of ADR 13, which has the proofs; the part behind a colon says which hint.
HINTS = {
    "hint_bits: tuples": tuple_hints,
    "hint_bits: prune xid": prune_xid,
    "hint_bits: page full": page_full,
    "hint_bits: free lines": free_lines,
    "hint_bits: dead entries": dead_entries,
    "hint_bits: vacuum cycle": vacuum_cycle,
    "hint_bits: evacuated": evacuated,
}
UNLOGGED = {"all_visible": all_visible}
ALWAYS = {"last_used_pages": last_used_pages}
WITHOUT_PAGES = {"logged_hint_bits": hint_lsn}
LOGGED_HINTS = {**HINTS, **WITHOUT_PAGES}
KINDS = {**ALWAYS, **HINTS, **UNLOGGED, **WITHOUT_PAGES}


class Conditions:
    """Under which settings the pages changed, at the worst."""

    def __init__(self, hints_logged=True, full_page_writes=True):
        self.hints_logged = hints_logged
        self.full_page_writes = full_page_writes

    def and_also(self, other):
        return Conditions(self.hints_logged and other.hints_logged,
                          self.full_page_writes and other.full_page_writes)

    def kinds(self):
        """What may differ in a page that nobody marked."""
        kinds = dict(ALWAYS)
        if not self.hints_logged or not self.full_page_writes:
            kinds.update(HINTS)
        if not self.hints_logged:
            kinds.update(UNLOGGED)
        if not self.full_page_writes:
            kinds.update(WITHOUT_PAGES)
        return kinds


def difference(old, new):
    return int.from_bytes(old, "big") ^ int.from_bytes(new, "big")


def differences(before, after, kinds):
    """The kinds in which two pages differ; None if they differ in anything else."""
    old, new = bytearray(before), bytearray(after)
    method = access_method(old)
    found = []
    if method is None or method != access_method(new):
        return None
    # it follows from the rest, but is no difference of its own
    old[8:10] = new[8:10] = bytes(2)
    left = difference(old, new)
    for name, mask in kinds.items():
        mask(old, method)
        mask(new, method)
        before, left = left, difference(old, new)
        if left != before:
            found.append(name)
    return found if found and left == 0 else None


def in_brackets(before, counter):
    counts = ", ".join(f"{name} {count}" for name, count in sorted(counter.items()))
    return f" ({before}{counts})" if counts else ""


class Result:
    """What a comparison found."""

    def __init__(self):
        self.pages = 0
        self.differing = 0
        self.marked = 0
        self.marked_hints = collections.Counter()
        self.beyond = 0
        self.new_files = 0
        self.masked_pages = 0
        self.masked = collections.Counter()
        self.missed = []

    def add(self, other):
        for name in ("pages", "differing", "marked", "beyond", "new_files", "masked_pages"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.masked.update(other.masked)
        self.marked_hints.update(other.marked_hints)
        self.missed += other.missed

    def __str__(self):
        return (f"{self.pages} pages, {self.differing} differ, {self.marked} marked"
                f"{in_brackets('in hints alone: ', self.marked_hints)}, {self.masked_pages} harmless"
                f"{in_brackets('', self.masked)}, {len(self.missed)} MISSED;"
                f" {self.beyond} beyond the older length, {self.new_files} new files")


def what_differs(before, after):
    """For people: where two pages differ."""
    at = [i for i in range(PAGE) if before[i] != after[i]]
    old, new = (struct.unpack_from("<II", page) for page in (before, after))
    return (f"{access_method(before)} page, LSN {old[0]:X}/{old[1]:X} then {new[0]:X}/{new[1]:X},"
            f" {len(at)} bytes from {at[0]} to {at[-1]}: {at[:12]},"
            f" as {differences(before, after, KINDS)}")


def is_in_visibility_map(visibility_map, block):
    """Two bits for each block, behind each page's header."""
    page, bit = divmod(block * 2, (PAGE - HEADER) * 8)
    at = page * PAGE + HEADER + bit // 8
    return at < len(visibility_map) and visibility_map[at] >> (bit % 8) & 3 != 0


def contradicts(before, after, bits):
    """Does one tuple say committed where it said aborted, or the other way round?"""
    pairs = zip(infomasks(before), infomasks(after))
    return any({was & bits, now & bits} == {bits & -bits, bits & ~(bits & -bits)} for (_, was), (_, now) in pairs)


def right_direction(before, after, found, is_visible):
    """What comes without WAL does not go without WAL."""
    if "all_visible" in found and (before[10] & ALL_VISIBLE or is_visible):
        return False
    if "hint_bits: vacuum cycle" in found and after[PAGE - 2:] != bytes(2):
        return False
    if "hint_bits: tuples" in found and any(contradicts(before, after, bits) for bits in (XMIN_HINTS, XMAX_HINTS)):
        return False
    if "logged_hint_bits" in found:
        return struct.unpack_from("<II", before) < struct.unpack_from("<II", after)
    return True


def is_empty_heap_page(page):
    """As PageInit() leaves it."""
    header = struct.pack("<IIHHHHHH", 0, 0, 0, 0, HEADER, PAGE, PAGE, PAGE | 4)
    return page[:8] + bytes(2) + page[10:20] == header and not any(page[20:])


def allowed(before, after, kinds, is_visible):
    """The kinds in which an unmarked page differs, or None if that may not be."""
    if not any(before) and is_empty_heap_page(after):
        return ["empty_pages"]
    found = differences(before, after, kinds)
    return found if found and right_direction(before, after, found, is_visible) else None


def compare_file(key, old, new, changes, kinds, result):
    old_bytes, new_bytes = old.read_bytes(), new.read_bytes()
    visibility_map = None
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
        result.differing += 1
        if changes.has(*key, block):
            result.marked += 1
            # the page's LSN moves with a hint that is logged
            if key[1] == "main" and set(differences(before, after, LOGGED_HINTS) or []) & set(HINTS):
                result.marked_hints[access_method(after)] += 1
            continue
        if visibility_map is None:
            path = new.with_name(f"{new.name.split('.')[0]}_vm")
            visibility_map = path.read_bytes() if path.exists() else b""
        is_visible = is_in_visibility_map(visibility_map, key[2] * SEGMENT_BLOCKS + block)
        masked = allowed(before, after, kinds, is_visible) if key[1] == "main" else None
        if masked is None:
            result.missed.append((*key, block, what_differs(before, after)))
        else:
            result.masked_pages += 1
            result.masked.update(masked)


def compare(old, new, changes, conditions=None):
    """Without conditions: the weakest, under which most may differ."""
    kinds = (conditions or Conditions(False, False)).kinds()
    result = Result()
    old_files = relation_files(old)
    for key, path in relation_files(new).items():
        if key in old_files:
            compare_file(key, old_files[key], path, changes, kinds, result)
        else:
            result.new_files += 1
    return result
