//! Timelines and where they leave one another.
//!
//! A history is kept normalised: its entries are in order, meet without gap or overlap, and only the last is open. The
//! server can write switch points that go backwards (recovery with a target timeline that stops before that timeline
//! began); it then looks entries up newest first, and so the newest entry wins here too.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::bytes::decimal_word;
use crate::{Error, Lsn, Result};

/// Number of a timeline; shown in decimal, part of file names as eight hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TimelineId(u32);

impl TimelineId {
    /// The timeline of every new cluster.
    pub const FIRST: Self = Self(1);

    /// The timeline with this number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Eight upper-case hexadecimal digits, as in the names of WAL files.
    #[must_use]
    pub fn hex8(self) -> String {
        format!("{:08X}", self.0)
    }

    /// `0000000A.history`.
    #[must_use]
    pub fn history_file_name(self) -> String {
        format!("{:08X}.history", self.0)
    }
}

impl fmt::Display for TimelineId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl FromStr for TimelineId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match decimal_word(text.as_bytes()) {
            Some(number) if number > 0 => Ok(Self(number)),
            _ => Err(Error::malformed(format!(
                "invalid timeline {text:?}: expected a positive decimal number"
            ))),
        }
    }
}

/// The part of one timeline that belongs to a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimelineEntry {
    /// The timeline.
    pub timeline: TimelineId,
    /// First position that belongs to it.
    pub begin: Lsn,
    /// First position that does not; the last timeline of a history has no end.
    pub end: Option<Lsn>,
}

/// The way from the first timeline to one timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineHistory {
    entries: Vec<TimelineEntry>,
    timeline: TimelineId,
}

impl TimelineHistory {
    /// The history of a timeline that has no `.history` file: it began with the cluster.
    #[must_use]
    pub fn first(timeline: TimelineId) -> Self {
        Self {
            entries: vec![TimelineEntry {
                timeline,
                begin: Lsn::INVALID,
                end: None,
            }],
            timeline,
        }
    }

    /// Reads the contents of `timeline`'s `.history` file. The reason at the end of a line may be in any encoding.
    ///
    /// # Errors
    ///
    /// As [`TimelineHistory::parse`].
    pub fn read(timeline: TimelineId, contents: &[u8]) -> Result<Self> {
        Self::parse(timeline, &String::from_utf8_lossy(contents))
    }

    /// Reads the text of `timeline`'s `.history` file.
    ///
    /// # Errors
    ///
    /// When a line is not `parent<TAB>switch point<TAB>reason`, or timelines do not increase towards `timeline`.
    pub fn parse(timeline: TimelineId, text: &str) -> Result<Self> {
        let mut switches = Vec::new();
        for line in text.lines() {
            let line = line.trim_start();
            if !line.is_empty() && !line.starts_with('#') {
                switches.push(parse_switch(timeline, line)?);
            }
        }
        let mut previous = 0;
        for number in switches
            .iter()
            .map(|(parent, _)| parent.0)
            .chain([timeline.0])
        {
            if number <= previous {
                return Err(Error::malformed(format!(
                    "invalid timeline history file \"{}\": timeline {number} follows timeline {previous}, but timelines must increase",
                    timeline.history_file_name(),
                )));
            }
            previous = number;
        }
        Ok(Self::from_switches(timeline, &switches))
    }

    fn from_switches(timeline: TimelineId, switches: &[(TimelineId, Lsn)]) -> Self {
        let mut entries = Vec::with_capacity(switches.len() + 1);
        let mut begin_of_next = None;
        // From the newest: what a newer timeline covers, an older one has lost.
        for &(parent, switch_point) in switches.iter().rev() {
            let end = begin_of_next.map_or(switch_point, |next: Lsn| next.min(switch_point));
            entries.push(TimelineEntry {
                timeline: parent,
                begin: Lsn::INVALID,
                end: Some(end),
            });
            begin_of_next = Some(end);
        }
        entries.reverse();
        entries.push(TimelineEntry {
            timeline,
            begin: Lsn::INVALID,
            end: None,
        });
        let mut begin = Lsn::INVALID;
        for entry in &mut entries {
            entry.begin = begin;
            begin = entry.end.unwrap_or(begin);
        }
        Self { entries, timeline }
    }

    /// The timeline this history leads to.
    #[must_use]
    pub fn timeline(&self) -> TimelineId {
        self.timeline
    }

    /// The entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> &[TimelineEntry] {
        &self.entries
    }

    /// The part of `timeline` that belongs to this history.
    #[must_use]
    pub fn entry(&self, timeline: TimelineId) -> Option<&TimelineEntry> {
        self.entries.iter().find(|entry| entry.timeline == timeline)
    }

    /// Whether the WAL `range` (half-open) of `timeline` lies on this history from its first to its last byte.
    #[must_use]
    pub fn contains(&self, timeline: TimelineId, range: Range<Lsn>) -> bool {
        self.entry(timeline).is_some_and(|entry| {
            range.start <= range.end
                && entry.begin <= range.start
                && entry.end.is_none_or(|end| range.end <= end)
        })
    }

    /// The timeline to which the byte at `lsn` belongs.
    #[must_use]
    pub fn timeline_at(&self, lsn: Lsn) -> Option<TimelineId> {
        let holds =
            |entry: &&TimelineEntry| entry.begin <= lsn && entry.end.is_none_or(|end| lsn < end);
        self.entries.iter().find(holds).map(|entry| entry.timeline)
    }

    /// Whether a cluster that has replayed `timeline` up to `lsn` (exclusive) can go on along this history: the history
    /// passes through `timeline` and had not left it before `lsn`.
    #[must_use]
    pub fn is_ancestor(&self, timeline: TimelineId, lsn: Lsn) -> bool {
        self.contains(timeline, lsn..lsn)
    }

    /// Where this history leaves `timeline`; `None` for its last timeline and for those it does not pass.
    #[must_use]
    pub fn switch_point(&self, timeline: TimelineId) -> Option<Lsn> {
        self.entry(timeline)?.end
    }
}

/// `parent<TAB>switch point<TAB>reason`; like the server's `sscanf`, any white space separates, and the reason may be absent.
fn parse_switch(timeline: TimelineId, line: &str) -> Result<(TimelineId, Lsn)> {
    let mut words = line.split_ascii_whitespace();
    let parent = words.next().and_then(|word| word.parse().ok());
    let switch_point = words.next().and_then(|word| word.parse().ok());
    parent.zip(switch_point).ok_or_else(|| {
        Error::malformed(format!(
            "invalid timeline history file \"{}\": line {line:?} is not a timeline and a switch point",
            timeline.history_file_name(),
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lsn(text: &str) -> Lsn {
        text.parse().unwrap()
    }

    fn three() -> TimelineHistory {
        let text = "1\t0/3000000\tno recovery target specified\n\n2\t0/5000000\tbefore 2026-11-21 10:00:00+00\n";
        TimelineHistory::parse(TimelineId::new(3), text).unwrap()
    }

    #[test]
    fn ranges_are_half_open_at_every_switch() {
        let history = three();
        assert_eq!(
            history.timeline_at(lsn("0/2FFFFFF")),
            Some(TimelineId::new(1))
        );
        assert_eq!(
            history.timeline_at(lsn("0/3000000")),
            Some(TimelineId::new(2))
        );
        assert_eq!(
            history.timeline_at(lsn("0/5000000")),
            Some(TimelineId::new(3))
        );
        assert_eq!(
            history.switch_point(TimelineId::new(1)),
            Some(lsn("0/3000000"))
        );
        assert_eq!(history.switch_point(TimelineId::new(3)), None);
        assert!(history.contains(TimelineId::new(1), lsn("0/1")..lsn("0/3000000")));
        assert!(!history.contains(TimelineId::new(1), lsn("0/1")..lsn("0/3000001")));
        assert!(!history.contains(TimelineId::new(2), lsn("0/2FFFFFF")..lsn("0/4000000")));
        assert!(history.contains(TimelineId::new(3), lsn("0/5000000")..lsn("FFFF/0")));
    }

    #[test]
    fn a_point_beyond_the_switch_is_no_ancestor() {
        let history = three();
        assert!(history.is_ancestor(TimelineId::new(1), lsn("0/3000000")));
        assert!(!history.is_ancestor(TimelineId::new(1), lsn("0/3000001")));
        assert!(!history.is_ancestor(TimelineId::new(4), lsn("0/1")));
        assert!(history.is_ancestor(TimelineId::new(3), lsn("0/6000000")));
    }

    #[test]
    fn a_timeline_without_history_reaches_everywhere() {
        let history = TimelineHistory::first(TimelineId::FIRST);
        assert!(history.contains(TimelineId::FIRST, Lsn::INVALID..Lsn::new(u64::MAX)));
        assert_eq!(history.entries().len(), 1);
    }

    #[test]
    fn comments_and_white_space_are_skipped_as_the_server_does() {
        let history =
            TimelineHistory::parse(TimelineId::new(2), "# made by hand\n  \n \t1 0/3000000\n")
                .unwrap();
        assert_eq!(
            history.switch_point(TimelineId::new(1)),
            Some(lsn("0/3000000"))
        );
    }

    #[test]
    fn damaged_histories_are_refused() {
        for text in [
            "1\n",
            "1\t0\treason\n",
            "0\t0/1\treason\n",
            "x\t0/1\treason\n",
            "2\t0/1\treason\n1\t0/2\treason\n",
            "1\t0/1\treason\n1\t0/2\treason\n",
            "3\t0/1\treason\n",
            "4\t0/1\treason\n",
        ] {
            assert!(
                TimelineHistory::parse(TimelineId::new(3), text).is_err(),
                "{text:?} was read"
            );
        }
    }
}
