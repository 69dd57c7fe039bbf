//! A simulated data directory with its server.

use std::collections::BTreeSet;
use std::rc::Rc;

use pgstrata_layer::lineage::{Identity, Lineage, Located, Place};
use pgstrata_layer::manifest::{
    ChangeSource, ChangeSourceRecord, ClusterIdentity, Manifest, Totals,
};
use pgstrata_pgdata::{Lsn, TimelineHistory, TimelineId};

use super::super::backup_type::Standpoint;
use crate::server::summary::{Stretch, none_beyond};

pub(super) const PAGES: usize = 2;
pub(super) const SYSTEM: u64 = 7;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageState {
    pub(super) version: u32,
    pub(super) lsn: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) number: u32,
    pub(super) page: usize,
    pub(super) timeline: u32,
    pub(super) lsn: u64,
}

/// What the tracker binds its map to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Control {
    pub(super) redo: u64,
    /// Each clean stop leaves another one.
    pub(super) clean: Option<u32>,
}

/// The tracker's map: as a file, or in the memory of a server that runs.
#[derive(Clone, Debug)]
pub(super) struct Map {
    pub(super) clean: Option<u32>,
    pub(super) redo: [u64; 2],
    /// Somebody has called `pgstrata.reset()`.
    pub(super) reset: bool,
    /// Tokens, and the pages that changed since.
    pub(super) tokens: Vec<(u32, [bool; PAGES])>,
}

#[derive(Clone, Debug)]
pub(super) struct Directory {
    pub(super) place: Rc<Place>,
    pub(super) lineage: Option<Rc<Lineage>>,
    pub(super) map: Option<Map>,
    pub(super) control: Control,
    pub(super) pages: [PageState; PAGES],
    /// Numbers of all changes that made it what it is.
    pub(super) past: Vec<u32>,
    pub(super) lsn: u64,
    pub(super) timeline: u32,
    pub(super) switches: String,
    /// Changes that summaries hold, and how far each timeline is summarized.
    pub(super) summaries: BTreeSet<(u32, u64, usize)>,
    pub(super) summarized: Vec<(u32, u64)>,
    pub(super) run: u32,
    pub(super) boot: u32,
    pub(super) tracks: bool,
    pub(super) follows: bool,
}

pub(super) fn place(directory: u64, control: u64) -> Place {
    let identity = |inode| Identity {
        inode,
        born_ns: None,
    };
    Place {
        directory: Located {
            path: None,
            identity: identity(directory),
        },
        control: identity(control),
        links: Vec::new(),
    }
}

impl Directory {
    pub(super) fn apply(&mut self, change: Change) {
        self.lsn = change.lsn;
        self.past.push(change.number);
        self.pages[change.page] = PageState {
            version: change.number,
            lsn: change.lsn,
        };
        if self.tracks
            && let Some(map) = &mut self.map
        {
            for (_, marks) in &mut map.tokens {
                marks[change.page] = true;
            }
        }
        // Where there is a summary already none is made.
        if change.lsn > self.summarized_to(change.timeline) {
            self.summaries
                .insert((change.timeline, change.lsn, change.page));
            self.summarize();
        }
    }

    pub(super) fn summarized_to(&self, timeline: u32) -> u64 {
        let of = self.summarized.iter().filter(|(of, _)| *of == timeline);
        of.map(|(_, to)| *to).max().unwrap_or_default()
    }

    /// Where the WAL is, when all summaries are of WAL from before.
    pub(super) fn summaries_written(&self) -> Option<Lsn> {
        let summarized = self.summarized.iter();
        let available = summarized.map(|(timeline, to)| Stretch {
            timeline: TimelineId::new(*timeline),
            range: Lsn::new(0)..Lsn::new(*to),
        });
        let (available, end): (Vec<_>, _) = (available.collect(), Lsn::new(self.lsn));
        none_beyond(&available, TimelineId::new(self.timeline), end).then_some(end)
    }

    pub(super) fn summarize(&mut self) {
        self.summarized.push((self.timeline, self.lsn));
    }

    /// Recovery has ended: the next timeline begins.
    pub(super) fn switch(&mut self) {
        let here = format!("{}\t{}\tpromoted\n", self.timeline, Lsn::new(self.lsn));
        self.switches.push_str(&here);
        self.timeline += 1;
        self.follows = false;
    }

    pub(super) fn marks(&self, token: &str) -> Option<[bool; PAGES]> {
        let map = self.map.as_ref().filter(|_| self.tracks)?;
        let mut tokens = map.tokens.iter();
        let found = tokens.find(|(known, _)| known.to_string() == token);
        found.map(|(_, marks)| *marks)
    }

    pub(super) fn knows(&self, token: &str) -> bool {
        self.marks(token).is_some()
    }

    pub(super) fn standpoint(&self, further: u64) -> Standpoint {
        let timeline = TimelineId::new(self.timeline);
        let history = match self.timeline {
            1 => Ok(TimelineHistory::first(timeline)),
            _ => {
                TimelineHistory::parse(timeline, &self.switches).map_err(|error| error.to_string())
            }
        };
        let start = match self.follows {
            true => self.control.redo,
            false => self.lsn + further,
        };
        Standpoint {
            start_lsn: Lsn::new(start),
            timeline,
            data_checksum_version: 0,
            from_standby: self.follows,
            history,
        }
    }
}

pub(super) fn manifest(
    directory: &Directory,
    label: &str,
    start: u64,
    token: Option<String>,
) -> Manifest {
    let time = jiff::Timestamp::UNIX_EPOCH;
    Manifest {
        label: label.to_owned(),
        layer_id: String::new(),
        parent: None,
        replaces: Vec::new(),
        inputs: Vec::new(),
        beside: None,
        cluster: ClusterIdentity {
            system_identifier: SYSTEM,
            major: 18,
            catalog_version: 0,
            block_size: 8192,
            wal_segment_size: 1 << 24,
            data_checksum_version: 0,
        },
        written_by: String::new(),
        started_at: time,
        finished_at: time,
        start_lsn: Lsn::new(start),
        stop_lsn: Lsn::new(directory.lsn),
        timeline: TimelineId::new(directory.timeline),
        from_standby: directory.follows,
        change_source: ChangeSourceRecord {
            used: ChangeSource::Everything,
            reason: String::new(),
        },
        tracker_token: token,
        backup_label: String::new(),
        tablespace_map: None,
        pg_control: String::new(),
        pg_control_size: 0,
        tablespaces: Vec::new(),
        index: Vec::new(),
        pack_count: 0,
        pack_bytes: 0,
        totals: Totals::default(),
        corrupt_pages: Vec::new(),
        encryption: None,
    }
}
