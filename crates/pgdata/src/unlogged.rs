//! What may change on a page of a main fork although no recovery repeats the change.
//!
//! Who compares two versions of a page to find out whether a change was missed must
//! not count these. Each is proved in ADR 13. Everything here is one-sided: a page of
//! a kind that is not known, or a field that is not named, has no excuse.

use crate::bytes::Fields;
use crate::page::{PAGE_HEADER_SIZE, PageHeader, is_zero};
use crate::relation::{BLOCK_SIZE, BlockNumber};

/// Where the fields of a page header are, and how long they are.
const LSN: Span = (0, 8);
const CHECKSUM: Span = (8, 2);
const FLAGS: usize = 10;
const PRUNE_XID: Span = (20, 4);

/// `PD_HAS_FREE_LINES` and `PD_PAGE_FULL`.
const HEADER_HINTS: u16 = 0x0003;
/// `PD_ALL_VISIBLE`.
const ALL_VISIBLE: u16 = 0x0004;

/// `lp_flags` within a line pointer; `LP_NORMAL` and `LP_DEAD` there.
const LINE_FLAGS: u32 = 3 << 15;
const LINE_NORMAL: u32 = 1 << 15;
const LINE_DEAD: u32 = 3 << 15;

/// `t_infomask` and `t_hoff` within a heap tuple, and the least that a `t_hoff` can be.
const INFOMASK: usize = 20;
const HEADER_LENGTH: usize = 22;
const LEAST_HEADER_LENGTH: usize = 24;

/// `HEAP_XMIN_COMMITTED`, `HEAP_XMIN_INVALID`; both together are `HEAP_XMIN_FROZEN`.
const XMIN_HINTS: u16 = 0x0300;
/// `HEAP_XMAX_COMMITTED`, `HEAP_XMAX_INVALID`.
const XMAX_HINTS: u16 = 0x0C00;

/// `GIST_PAGE_ID`, `HASHO_PAGE_ID` and `SPGIST_PAGE_ID`, the last two bytes of their pages. A
/// b-tree has its vacuum's cycle there, which is smaller than all of them.
const GIST_ID: u16 = 0xFF81;
const HASH_ID: u16 = 0xFF80;
const SPGIST_ID: u16 = 0xFF82;
/// `MAX_BT_CYCLE_ID`.
const LARGEST_BTREE_CYCLE: u16 = 0xFF7F;
/// `BRIN_PAGETYPE_REGULAR`.
const BRIN_REGULAR: u16 = 0xF093;

/// `BTP_LEAF`, `BTP_DELETED`, `BTP_META`, `BTP_HALF_DEAD`, `BTP_HAS_GARBAGE`.
const BTREE_LEAF: u16 = 1 << 0;
const BTREE_NO_ITEMS: u16 = 1 << 2 | 1 << 3 | 1 << 4;
const BTREE_GARBAGE: u16 = 1 << 6;
/// `F_LEAF`, `F_DELETED`, `F_HAS_GARBAGE`.
const GIST_LEAF: u16 = 1 << 0;
const GIST_DELETED: u16 = 1 << 1;
const GIST_GARBAGE: u16 = 1 << 4;
/// `LH_OVERFLOW_PAGE`, `LH_BUCKET_PAGE`, `LH_BITMAP_PAGE`, `LH_META_PAGE`, `LH_PAGE_HAS_DEAD_TUPLES`.
const HASH_ITEMS: u16 = 1 << 0 | 1 << 1;
const HASH_NO_ITEMS: u16 = 1 << 2 | 1 << 3;
const HASH_GARBAGE: u16 = 1 << 7;
/// `BRIN_EVACUATE_PAGE`.
const BRIN_EVACUATE: u16 = 1 << 0;
/// `SPGIST_META`, `SPGIST_MAGIC_NUMBER`, and `lastUsedPages` behind it: eight times block and free space.
const SPGIST_META: u16 = 1 << 0;
const SPGIST_MAGIC: u32 = 0xBA0B_ABEE;
const SPGIST_LAST_USED: Span = (28, 64);

/// Heap blocks of one page of a visibility map: two bits each, behind the page header.
const BLOCKS_PER_MAP_PAGE: u32 = 32_672;

/// First byte and length of a field.
type Span = (usize, usize);

/// A difference that loses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Harmless {
    /// Hint bits that are not logged.
    HintBits,
    /// Hint bits that are logged without the page, and the LSN of that record.
    LoggedHintBits,
    /// `PD_ALL_VISIBLE`, with or without hint bits. Harmless only while the visibility map
    /// does not have the bit: see [`MapPlace`].
    AllVisible,
    /// What an SP-GiST index remembers of the pages used last.
    LastUsedPages,
    /// A page of zeros became an empty heap page.
    EmptyPage,
}

/// Whether a page got a new LSN with each of its bits, for some time: `XLogHintBitIsNeeded` of `access/xlog.h`, which data
/// checksums are enough for, or the setting `wal_log_hints` of the very server that writes the page. A standby has in its
/// control file the setting of its primary. Without, hint bits change without WAL, and the bit that says "all visible"
/// changes under the LSN that the page had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HintLogging {
    /// All the time.
    Always,
    /// At no time.
    Never,
    /// Now and then, or nobody knows.
    Unknown,
}

/// What a server's settings let change without a recovery that repeats it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Excuses {
    hints: bool,
    lsn_of_hints: bool,
    all_visible: bool,
}

impl Excuses {
    /// Of a server that logged hints so, with `full_page_writes` on or off.
    #[must_use]
    pub fn of(logging: HintLogging, full_page_writes: bool) -> Self {
        let without_pages = logging != HintLogging::Never && !full_page_writes;
        let unlogged = logging != HintLogging::Always;
        Self {
            hints: unlogged || without_pages,
            lsn_of_hints: without_pages,
            all_visible: unlogged,
        }
    }
}

/// Why `after` may be on disk where `before` was, when no WAL says so; `None`: it may not.
#[must_use]
pub fn excuse(before: &[u8], after: &[u8], excuses: Excuses) -> Option<Harmless> {
    if before.len() != BLOCK_SIZE || after.len() != BLOCK_SIZE {
        return None;
    }
    if is_zero(before) {
        return is_empty_heap_page(after).then_some(Harmless::EmptyPage);
    }
    let kind = PageKind::of(before)?;
    let mut undo = Undo {
        before,
        page: after.to_vec(),
        hints: false,
    };
    // Every version of a page has a checksum of its own.
    undo.take(CHECKSUM);
    if kind == PageKind::SpGistMeta {
        undo.take(SPGIST_LAST_USED);
        return (undo.page == before).then_some(Harmless::LastUsedPages);
    }
    if !excuses.hints {
        return None;
    }
    let lsn_moved = excuses.lsn_of_hints && undo.lsn_moved_forward();
    let became_visible = excuses.all_visible && !lsn_moved && kind == PageKind::Heap && {
        let visible = |page: &[u8]| half(page, FLAGS) & ALL_VISIBLE != 0;
        !visible(before) && visible(after)
    };
    if lsn_moved {
        undo.take(LSN);
    }
    if became_visible {
        undo.take_bits(FLAGS, ALL_VISIBLE);
    }
    undo.hints_of(kind);
    match (undo.page == before, lsn_moved, became_visible) {
        (false, _, _) => None,
        (true, true, _) => Some(Harmless::LoggedHintBits),
        (true, false, true) => Some(Harmless::AllVisible),
        (true, false, false) => undo.hints.then_some(Harmless::HintBits),
    }
}

/// Whose page it is, told from the page alone, as far as there is something to excuse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageKind {
    Heap,
    BtreeLeaf,
    GistLeaf,
    HashItems,
    SpGistMeta,
    BrinRegular,
}

impl PageKind {
    fn of(page: &[u8]) -> Option<Self> {
        let header = PageHeader::new(page).ok().filter(PageHeader::is_sane)?;
        let special = usize::from(header.special());
        if header.upper() == 0 || usize::from(header.lower()) < PAGE_HEADER_SIZE {
            return None;
        }
        let (id, flags) = (half(page, BLOCK_SIZE - 2), half(page, BLOCK_SIZE - 4));
        match BLOCK_SIZE - special {
            0 => Some(Self::Heap),
            16 if id == GIST_ID => {
                (flags & (GIST_LEAF | GIST_DELETED) == GIST_LEAF).then_some(Self::GistLeaf)
            }
            16 if id == HASH_ID => {
                (flags & HASH_ITEMS != 0 && flags & HASH_NO_ITEMS == 0).then_some(Self::HashItems)
            }
            16 if id <= LARGEST_BTREE_CYCLE => {
                (flags & (BTREE_LEAF | BTREE_NO_ITEMS) == BTREE_LEAF).then_some(Self::BtreeLeaf)
            }
            8 if id == SPGIST_ID => {
                let meta = half(page, special) & SPGIST_META != 0;
                let magic = Fields(page).word(PAGE_HEADER_SIZE) == Some(SPGIST_MAGIC);
                (meta && magic).then_some(Self::SpGistMeta)
            }
            8 if id == BRIN_REGULAR => Some(Self::BrinRegular),
            _ => None,
        }
    }
}

/// The newer page, in which what has an excuse is put back to what it was.
struct Undo<'a> {
    before: &'a [u8],
    page: Vec<u8>,
    /// Whether a hint bit was among it.
    hints: bool,
}

impl Undo<'_> {
    fn take(&mut self, (start, length): Span) {
        self.page[start..start + length].copy_from_slice(&self.before[start..start + length]);
    }

    /// Takes the bits of `mask` of the 16 bits at `at`.
    fn take_bits(&mut self, at: usize, mask: u16) {
        let (old, new) = (half(self.before, at), half(&self.page, at));
        let mixed = new & !mask | old & mask;
        self.page[at..at + 2].copy_from_slice(&mixed.to_le_bytes());
    }

    /// As [`Self::take_bits`], of hint bits.
    fn take_hints(&mut self, at: usize, mask: u16) {
        self.hints |= (half(self.before, at) ^ half(&self.page, at)) & mask != 0;
        self.take_bits(at, mask);
    }

    fn lsn_moved_forward(&self) -> bool {
        let lsn = |page| PageHeader::new(page).map(|header| header.lsn());
        matches!((lsn(self.before), lsn(&self.page)), (Ok(old), Ok(new)) if old < new)
    }

    fn hints_of(&mut self, kind: PageKind) {
        let flags = BLOCK_SIZE - 4;
        match kind {
            PageKind::Heap => {
                self.take_hints(FLAGS, HEADER_HINTS);
                let (start, length) = PRUNE_XID;
                self.hints |=
                    self.before[start..start + length] != self.page[start..start + length];
                self.take(PRUNE_XID);
                self.each_line(Self::tuple_hints);
            }
            PageKind::BtreeLeaf => {
                self.take_hints(flags, BTREE_GARBAGE);
                // Vacuum clears the cycle of a split as a hint; a split that sets one is logged.
                if half(&self.page, BLOCK_SIZE - 2) == 0 {
                    self.take_hints(BLOCK_SIZE - 2, u16::MAX);
                }
                self.each_line(Self::entry_hint);
            }
            PageKind::GistLeaf => {
                self.take_hints(flags, GIST_GARBAGE);
                self.each_line(Self::entry_hint);
            }
            PageKind::HashItems => {
                self.take_hints(flags, HASH_GARBAGE);
                self.each_line(Self::entry_hint);
            }
            PageKind::BrinRegular => self.take_hints(flags, BRIN_EVACUATE),
            PageKind::SpGistMeta => {}
        }
    }

    /// Calls `act` with the place of every line pointer, as the older page has them.
    fn each_line(&mut self, act: impl Fn(&mut Self, usize)) {
        let lower = usize::from(half(self.before, 12));
        for at in (PAGE_HEADER_SIZE..lower.saturating_sub(3)).step_by(4) {
            act(self, at);
        }
    }

    /// An index entry that was found dead is flagged so, and keeps its place.
    fn entry_hint(&mut self, at: usize) {
        let (old, new) = (word(self.before, at), word(&self.page, at));
        let is_hint = |flags| flags == LINE_NORMAL || flags == LINE_DEAD;
        if old & !LINE_FLAGS == new & !LINE_FLAGS
            && old != new
            && is_hint(old & LINE_FLAGS)
            && is_hint(new & LINE_FLAGS)
        {
            self.take((at, 4));
            self.hints = true;
        }
    }

    /// What a heap tuple says of how its transactions ended.
    fn tuple_hints(&mut self, at: usize) {
        let pointer = word(self.before, at);
        if pointer & LINE_FLAGS != LINE_NORMAL || word(&self.page, at) != pointer {
            return;
        }
        let low = |bits: u32| usize::from(u16::try_from(bits & 0x7FFF).expect("15 bits"));
        let (tuple, length) = (low(pointer), low(pointer >> 17));
        if tuple + length > BLOCK_SIZE || length < LEAST_HEADER_LENGTH {
            return;
        }
        let header_length = usize::from(self.before[tuple + HEADER_LENGTH]);
        if !(LEAST_HEADER_LENGTH..=length).contains(&header_length)
            || !header_length.is_multiple_of(8)
        {
            return;
        }
        let infomask = tuple + INFOMASK;
        let either = half(self.before, infomask) | half(&self.page, infomask);
        // Both bits of the inserter mean "frozen", which is logged. Two that contradict
        // each other are of two histories.
        for mask in [XMIN_HINTS, XMAX_HINTS] {
            if either & mask != mask {
                self.take_hints(infomask, mask);
            }
        }
    }
}

/// `PageInit()` of a heap page, as `RelationGetBufferForTuple()` does without WAL, and nothing more.
fn is_empty_heap_page(page: &[u8]) -> bool {
    let header = PageHeader::new(page).ok().filter(PageHeader::is_sane);
    header.is_some_and(|header| {
        header.lsn().get() == 0
            && header.flags() == 0
            && usize::from(header.lower()) == PAGE_HEADER_SIZE
            && usize::from(header.upper()) == BLOCK_SIZE
            && usize::from(header.special()) == BLOCK_SIZE
            && is_zero(&page[PRUNE_XID.0..])
    })
}

/// Where the visibility map says whether a heap block is all-visible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapPlace {
    /// The block of the map.
    pub block: BlockNumber,
    byte: usize,
    shift: u32,
}

impl MapPlace {
    /// Of block `heap` of the main fork.
    #[must_use]
    pub fn of(heap: BlockNumber) -> Self {
        let within = heap.0 % BLOCKS_PER_MAP_PAGE;
        Self {
            block: BlockNumber(heap.0 / BLOCKS_PER_MAP_PAGE),
            byte: PAGE_HEADER_SIZE + usize::try_from(within / 4).expect("below 8192"),
            shift: within % 4 * 2,
        }
    }

    /// Whether this page of the map has the block's bit; a page that is not there has none.
    #[must_use]
    pub fn is_all_visible(&self, map_page: &[u8]) -> bool {
        map_page
            .get(self.byte)
            .is_some_and(|byte| byte >> self.shift & 1 != 0)
    }
}

fn half(page: &[u8], at: usize) -> u16 {
    Fields(page).half(at).unwrap_or_default()
}

fn word(page: &[u8], at: usize) -> u32 {
    Fields(page).word(at).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNLOGGED: Excuses = Excuses {
        hints: true,
        lsn_of_hints: false,
        all_visible: true,
    };
    const WITHOUT_PAGES: Excuses = Excuses {
        hints: true,
        lsn_of_hints: true,
        all_visible: false,
    };
    const LOGGED: Excuses = Excuses {
        hints: false,
        lsn_of_hints: false,
        all_visible: false,
    };

    const ANYTHING: Excuses = Excuses {
        hints: true,
        lsn_of_hints: true,
        all_visible: true,
    };

    #[test]
    fn what_is_not_known_of_the_settings_is_an_excuse() {
        use HintLogging::{Always, Never, Unknown};
        for (logging, full_page_writes, expected) in [
            (Always, true, LOGGED),
            (Always, false, WITHOUT_PAGES),
            (Never, true, UNLOGGED),
            (Never, false, UNLOGGED),
            (Unknown, true, UNLOGGED),
            (Unknown, false, ANYTHING),
        ] {
            assert_eq!(Excuses::of(logging, full_page_writes), expected);
        }
    }

    fn put(page: &mut [u8], at: usize, value: u16) {
        page[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// A page with two items of 40 bytes, and this much special space.
    fn page(special: u16) -> Vec<u8> {
        let mut page = vec![0; BLOCK_SIZE];
        let special_at = 8192 - special;
        page[4..8].copy_from_slice(&5000_u32.to_le_bytes());
        for (at, value) in [
            (12, 32),
            (14, special_at - 80),
            (16, special_at),
            (18, 8196),
        ] {
            put(&mut page, at, value);
        }
        for (at, item) in [(24, special_at - 40), (28, special_at - 80)] {
            let pointer = u32::from(item) | LINE_NORMAL | 40 << 17;
            page[at..at + 4].copy_from_slice(&pointer.to_le_bytes());
            let item = usize::from(item);
            page[item..item + 40].fill(0x11);
            put(&mut page, item + INFOMASK, 0x0002);
            page[item + HEADER_LENGTH] = 24;
        }
        page
    }

    fn index_page(id: u16, flags: u16) -> Vec<u8> {
        let mut page = page(16);
        put(&mut page, BLOCK_SIZE - 4, flags);
        put(&mut page, BLOCK_SIZE - 2, id);
        page
    }

    fn spgist_metapage() -> Vec<u8> {
        let mut page = page(8);
        put(&mut page, 12, 92);
        page[24..28].copy_from_slice(&SPGIST_MAGIC.to_le_bytes());
        put(&mut page, BLOCK_SIZE - 8, SPGIST_META);
        put(&mut page, BLOCK_SIZE - 2, SPGIST_ID);
        page
    }

    fn with(page: &[u8], act: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut page = page.to_vec();
        act(&mut page);
        page
    }

    const FIRST_TUPLE: usize = 8192 - 40;

    #[test]
    fn hint_bits_are_excused_where_they_are_not_logged_with_their_page() {
        let before = page(0);
        for after in [
            with(&before, |page| put(page, FIRST_TUPLE + INFOMASK, 0x0902)),
            with(&before, |page| put(page, FLAGS, HEADER_HINTS)),
            with(&before, |page| page[20] = 9),
        ] {
            assert_eq!(excuse(&before, &after, UNLOGGED), Some(Harmless::HintBits));
            assert_eq!(excuse(&after, &before, UNLOGGED), Some(Harmless::HintBits));
            assert_eq!(excuse(&before, &after, LOGGED), None);
            let moved = with(&after, |page| put(page, 4, 5001));
            let logged = excuse(&before, &moved, WITHOUT_PAGES);
            assert_eq!(logged, Some(Harmless::LoggedHintBits));
            assert_eq!(excuse(&before, &moved, UNLOGGED), None);
            assert_eq!(
                excuse(&moved, &before, WITHOUT_PAGES),
                None,
                "LSN went back"
            );
        }
    }

    #[test]
    fn freezing_is_no_hint() {
        let committed = with(&page(0), |page| put(page, FIRST_TUPLE + INFOMASK, 0x0102));
        let frozen = with(&page(0), |page| put(page, FIRST_TUPLE + INFOMASK, 0x0302));
        let aborted = with(&page(0), |page| put(page, FIRST_TUPLE + INFOMASK, 0x0202));
        assert_eq!(excuse(&committed, &frozen, UNLOGGED), None);
        assert_eq!(excuse(&page(0), &frozen, UNLOGGED), None);
        assert_eq!(excuse(&frozen, &committed, UNLOGGED), None);
        assert_eq!(excuse(&aborted, &committed, UNLOGGED), None);
    }

    #[test]
    fn a_page_may_become_all_visible_and_never_cease_to_be() {
        let before = page(0);
        let after = with(&before, |page| put(page, FLAGS, ALL_VISIBLE | 1));
        let excused = excuse(&before, &after, UNLOGGED);
        assert_eq!(excused, Some(Harmless::AllVisible));
        assert_eq!(excuse(&after, &before, UNLOGGED), None);
        assert_eq!(excuse(&before, &after, WITHOUT_PAGES), None);
        let moved = with(&after, |page| put(page, 4, 5001));
        assert_eq!(excuse(&before, &moved, ANYTHING), None);
    }

    #[test]
    fn entries_found_dead_are_hints_in_leaves_of_indexes_alone() {
        let dead = |page: &[u8], garbage: u16| {
            with(page, |page| {
                let pointer = word(page, 28) | LINE_DEAD;
                page[28..32].copy_from_slice(&pointer.to_le_bytes());
                let flags = half(page, BLOCK_SIZE - 4) | garbage;
                put(page, BLOCK_SIZE - 4, flags);
            })
        };
        for (id, flags, garbage) in [
            (7, BTREE_LEAF, BTREE_GARBAGE),
            (GIST_ID, GIST_LEAF, GIST_GARBAGE),
            (HASH_ID, 1, HASH_GARBAGE),
            (HASH_ID, 2, HASH_GARBAGE),
        ] {
            let before = index_page(id, flags);
            let after = dead(&before, garbage);
            assert_eq!(excuse(&before, &after, UNLOGGED), Some(Harmless::HintBits));
            assert_eq!(excuse(&before, &after, LOGGED), None);
            let other = dead(&before, garbage | 1 << 5);
            assert_eq!(excuse(&before, &other, UNLOGGED), None);
        }
        for (id, flags, garbage) in [
            (7, 0, BTREE_GARBAGE),
            (7, BTREE_LEAF | 1 << 2, BTREE_GARBAGE),
            (GIST_ID, 0, GIST_GARBAGE),
            (HASH_ID, 1 << 3, HASH_GARBAGE),
            (0xFF90, 1, 1 << 6),
        ] {
            let before = index_page(id, flags);
            assert_eq!(excuse(&before, &dead(&before, garbage), UNLOGGED), None);
        }
        let heap = page(0);
        assert_eq!(excuse(&heap, &dead(&heap, 0), UNLOGGED), None);
    }

    #[test]
    fn vacuum_clears_the_cycle_of_a_split_and_only_a_split_sets_it() {
        let split = index_page(7, BTREE_LEAF);
        let vacuumed = index_page(0, BTREE_LEAF);
        assert_eq!(
            excuse(&split, &vacuumed, UNLOGGED),
            Some(Harmless::HintBits)
        );
        assert_eq!(excuse(&vacuumed, &split, UNLOGGED), None);
    }

    #[test]
    fn the_metapage_of_an_spgist_index_may_change_where_it_remembers_pages() {
        let before = spgist_metapage();
        for at in SPGIST_LAST_USED.0..SPGIST_LAST_USED.0 + SPGIST_LAST_USED.1 {
            let after = with(&before, |page| page[at] ^= 0x40);
            let excused = excuse(&before, &after, LOGGED);
            assert_eq!(excused, Some(Harmless::LastUsedPages));
        }
        for at in [4, 10, 24, 27, 92, BLOCK_SIZE - 8, BLOCK_SIZE - 1] {
            let after = with(&before, |page| page[at] ^= 0x40);
            assert_eq!(excuse(&before, &after, ANYTHING), None, "{at}");
        }
    }

    #[test]
    fn a_page_of_zeros_may_become_an_empty_heap_page() {
        let zeros = vec![0; BLOCK_SIZE];
        let mut empty = zeros.clone();
        for (at, value) in [(12, 24), (14, 8192), (16, 8192), (18, 8196), (8, 77)] {
            put(&mut empty, at, value);
        }
        assert_eq!(excuse(&zeros, &empty, LOGGED), Some(Harmless::EmptyPage));
        assert_eq!(excuse(&empty, &zeros, UNLOGGED), None);
        assert_eq!(excuse(&zeros, &page(0), UNLOGGED), None);
        for at in [0, 4, 10, 20, 24, 5000, 8191] {
            let other = with(&empty, |page| page[at] = 1);
            assert_eq!(excuse(&zeros, &other, UNLOGGED), None, "{at}");
        }
    }

    /// Whatever byte of whatever page changes, in any of its bits: only the bits named above pass.
    #[test]
    fn every_other_bit_of_every_page_is_a_finding() {
        let pages = [
            (page(0), 2 + 16 + 32 + 4 * 2),
            (index_page(7, BTREE_LEAF), 1 + 16 + 3 + 2),
            (index_page(GIST_ID, GIST_LEAF), 1 + 16 + 2),
            (index_page(HASH_ID, 1), 1 + 16 + 2),
            (index_page(0xFF90, 1), 0),
        ];
        for (before, expected) in pages {
            let excused: Vec<(usize, u32)> = (0..BLOCK_SIZE)
                .flat_map(|at| (0..8).map(move |bit| (at, bit)))
                .filter(|&(at, bit)| {
                    let after = with(&before, |page| page[at] ^= 1 << bit);
                    excuse(&before, &after, UNLOGGED).is_some()
                })
                .collect();
            // Beside these, the 16 bits of the checksum, which alone are no hint.
            let allowed = |&(at, _): &(usize, u32)| !CHECKSUM_BYTES.contains(&at);
            assert!(excused.iter().all(allowed), "{excused:?}");
            assert!(excused.len() <= expected, "{} {excused:?}", excused.len());
        }
    }

    const CHECKSUM_BYTES: std::ops::Range<usize> = 8..10;

    #[test]
    fn the_map_has_two_bits_a_block_behind_its_header() {
        let mut map = vec![0; BLOCK_SIZE];
        let place = MapPlace::of(BlockNumber(BLOCKS_PER_MAP_PAGE + 6));
        assert_eq!(place.block, BlockNumber(1));
        assert!(!place.is_all_visible(&map));
        map[PAGE_HEADER_SIZE + 1] = 1 << 4;
        assert!(place.is_all_visible(&map));
        assert!(!place.is_all_visible(&[]));
        assert_eq!(
            MapPlace::of(BlockNumber(BLOCKS_PER_MAP_PAGE - 1)).block.0,
            0
        );
    }
}
