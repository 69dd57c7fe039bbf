//! The lineage of a data directory: which layers lie in its past, and which directory that is.
//!
//! A file of ours at the top of the data directory, written by each backup of it and
//! each restore into it. A storage snapshot that is reverted brings an older one back,
//! which lists older layers alone: exactly those that still lie in the directory's past.
//! A copy of the directory has a copy of the file, which says of which directory it is.
//! Older files that are copied over the directory leave the newer file where it is: so it
//! says in which run of the server it was written, which token the page tracker had then, and
//! what is known to have happened in that run.

use jiff::Timestamp;
use pgstrata_pgdata::Lsn;
use serde::{Deserialize, Serialize};

use crate::bytes::from_hex_exact;
use crate::cluster::{self, ClusterRecord};
use crate::digest::contents_hex;
use crate::entry::check_path;
use crate::error::{Error, Result};
use crate::manifest::ParentRef;
use crate::record;

/// Name of the file, at the top of the data directory.
pub const FILE_NAME: &str = "pgstrata.lineage";

const KIND: &str = "lineage";

/// The version of a file that says what happened in the run of the server.
const RUN_VERSION: u32 = 2;

/// Most layers of one line: ten days of hourly backups, in 50 kB.
pub const MAX_LAYERS: usize = 256;

/// Most lines: repositories, or names in them, that one directory is backed up to.
pub const MAX_LINES: usize = 8;

/// What is known of a data directory's past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lineage {
    /// From `pg_control`.
    pub system_identifier: u64,
    /// Which directory this is, and was when the file was written.
    pub place: Place,
    /// The boot of the operating system in which it was written; `None` when that is not known.
    pub boot_id: Option<String>,
    /// Whether the server's `fsync` was on, so that all that it had written outlives that boot.
    pub fsync: bool,
    /// The run of the server that was backed up; `None` when none ran, as after a restore. While
    /// it lasts nobody brings back an earlier state.
    pub server_run: Option<String>,
    /// A token of the page tracker from after the newest layer's end; `None` without tracker.
    /// A tracker that knows it has a directory of a later time.
    pub tracker_token: Option<String>,
    /// From here on every WAL summary in the directory was written in the run `server_run`; `None` when that is not
    /// known. A summary from before may be of a history that is lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summaries_from_lsn: Option<Lsn>,
    /// What lies in the directory's past, the line written last first.
    pub lines: Vec<Line>,
    /// When.
    pub written_at: Timestamp,
    /// Program and version.
    pub written_by: String,
}

/// The layers of one cluster of one repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    /// BLAKE3 of the cluster record's object, hexadecimal: no two repositories have the same.
    pub repository: String,
    /// Layers, the newest first. Not empty.
    pub layers: Vec<ParentRef>,
    /// How many of them, the newest ones, were made in the run `server_run`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub of_run: usize,
}

/// A data directory, told from all copies of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    /// The directory itself; its path is real: no part of it is a link.
    pub directory: Located,
    /// Its `global/pg_control`, which PostgreSQL never replaces by another file.
    pub control: Identity,
    /// The links that PostgreSQL made in it, ascending by their path: `pg_tblspc/<oid>` and `pg_wal`.
    pub links: Vec<Link>,
}

/// A link of the data directory, and the directory it leads to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// The link, relative to the data directory.
    pub link: String,
    /// Where it leads.
    pub leads_to: Located,
}

/// A directory: where it is, and which.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Located {
    /// The real, absolute path; `None` when it is not UTF-8.
    pub path: Option<String>,
    /// Which directory that is.
    pub identity: Identity,
}

/// A file or directory for as long as it exists, whatever it is called. Nothing of the
/// device is in it: its number may be another one after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// Its inode.
    pub inode: u64,
    /// When it was made, in nanoseconds since the Unix epoch; `None` when the file system does not know.
    pub born_ns: Option<u64>,
}

impl Lineage {
    /// All layers that lie in the past of the directory, those of one line after those of another.
    pub fn layers(&self) -> impl Iterator<Item = &ParentRef> {
        self.lines.iter().flat_map(|line| &line.layers)
    }

    /// The layers that were made in the run of the server in which the file was written.
    pub fn layers_of_run(&self) -> impl Iterator<Item = &ParentRef> {
        let lines = self.lines.iter();
        lines.flat_map(|line| line.layers.iter().take(line.of_run))
    }

    /// The lines, in which layers count as made in `run` only when the file was written in it.
    #[must_use]
    pub fn lines_in(mut self, run: Option<&str>) -> Vec<Line> {
        if run.is_none() || self.server_run.as_deref() != run {
            for line in &mut self.lines {
                line.of_run = 0;
            }
        }
        self.lines
    }

    fn tells_of_run(&self) -> bool {
        self.summaries_from_lsn.is_some() || self.lines.iter().any(|line| line.of_run > 0)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// What the line of a cluster's layers is called.
#[must_use]
pub fn line_name(record: &ClusterRecord) -> String {
    contents_hex(&cluster::encode(record))
}

/// `lines` with one more layer, made in the run that lasts, the oldest ones dropped where there are too many.
#[must_use]
pub fn with_layer(mut lines: Vec<Line>, repository: &str, layer: ParentRef) -> Vec<Line> {
    let known = lines.iter().position(|line| line.repository == repository);
    let mut line = known.map_or_else(
        || Line {
            repository: repository.to_owned(),
            layers: Vec::new(),
            of_run: 0,
        },
        |at| lines.remove(at),
    );
    let earlier = line.layers.iter().position(|other| *other == layer);
    let again = earlier.is_some_and(|at| at < line.of_run);
    line.layers.retain(|other| *other != layer);
    line.layers.insert(0, layer);
    line.layers.truncate(MAX_LAYERS);
    line.of_run = (line.of_run + usize::from(!again)).min(MAX_LAYERS);
    lines.insert(0, line);
    lines.truncate(MAX_LINES);
    lines
}

/// The file's bytes.
#[must_use]
pub fn encode(lineage: &Lineage) -> Vec<u8> {
    let version = match lineage.tells_of_run() {
        true => RUN_VERSION,
        false => record::VERSION,
    };
    record::encode_version(KIND, version, lineage)
}

/// Reads the file.
///
/// # Errors
/// When it is damaged, of another version, or says what cannot be.
pub fn decode(bytes: &[u8]) -> Result<Lineage> {
    let (version, lineage): (u32, Lineage) = record::decode_versions(KIND, RUN_VERSION, bytes)?;
    if lineage.tells_of_run() != (version == RUN_VERSION) {
        let what =
            format!("{KIND} of version {version} cannot say what happened in the server's run");
        return Err(Error::damaged(what));
    }
    lineage
        .check()
        .map_err(|error| error.into_damage().within(KIND))?;
    Ok(lineage)
}

impl Lineage {
    fn check(&self) -> Result<()> {
        if self.lines.len() > MAX_LINES {
            return Err(Error::damaged(format!("has {} lines", self.lines.len())));
        }
        if self.server_run.is_none() && self.tells_of_run() {
            let what = "says what happened in a run of the server, and not in which";
            return Err(Error::damaged(what));
        }
        self.lines.iter().try_for_each(Line::check)?;
        self.place.check()
    }
}

impl Line {
    fn check(&self) -> Result<()> {
        let layers = &self.layers;
        let repository = from_hex_exact::<32>(&self.repository);
        if repository.is_none() || layers.is_empty() || layers.len() > MAX_LAYERS {
            return Err(Error::damaged(format!(
                "has a line for {:?} of {} layers",
                self.repository,
                layers.len()
            )));
        }
        if self.of_run > layers.len() {
            return Err(Error::damaged(format!(
                "counts {} of {} layers as made in one run of the server",
                self.of_run,
                layers.len()
            )));
        }
        match layers.iter().find(|layer| !layer.can_be()) {
            None => Ok(()),
            Some(layer) => Err(Error::damaged(format!(
                "lists layer {:?}, which cannot be",
                layer.label
            ))),
        }
    }
}

impl Place {
    fn check(&self) -> Result<()> {
        self.directory.check()?;
        let mut last = "";
        for link in &self.links {
            check_path(&link.link)?;
            if link.link.as_str() <= last {
                return Err(Error::damaged(format!(
                    "link {:?} is out of order",
                    link.link
                )));
            }
            last = &link.link;
            link.leads_to.check()?;
        }
        Ok(())
    }
}

impl Located {
    fn check(&self) -> Result<()> {
        match &self.path {
            Some(path) if !path.starts_with('/') || path.contains('\0') => Err(Error::damaged(
                format!("directory {path:?} is not an absolute path"),
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::testing::require_damage_found;

    fn layer(number: usize) -> ParentRef {
        ParentRef {
            label: "20261121-093305F".to_owned(),
            manifest_digest: format!("{number:064x}"),
        }
    }

    fn located(path: &str) -> Located {
        Located {
            path: Some(path.to_owned()),
            identity: Identity {
                inode: 3,
                born_ns: None,
            },
        }
    }

    fn lineage() -> Lineage {
        Lineage {
            system_identifier: u64::MAX,
            place: Place {
                directory: located("/data"),
                control: Identity {
                    inode: 2,
                    born_ns: Some(9),
                },
                links: vec![Link {
                    link: "pg_tblspc/16390".to_owned(),
                    leads_to: located("/space"),
                }],
            },
            boot_id: None,
            fsync: true,
            server_run: Some("run".to_owned()),
            tracker_token: Some("1:7".to_owned()),
            summaries_from_lsn: Some(Lsn::new(9)),
            lines: with_layer(Vec::new(), &"a".repeat(64), layer(0)),
            written_at: Timestamp::UNIX_EPOCH,
            written_by: "test".to_owned(),
        }
    }

    #[test]
    fn damage_is_found() {
        assert_eq!(decode(&encode(&lineage())).unwrap(), lineage());
        require_damage_found(&encode(&lineage()), decode);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let wrong: [fn(&mut Lineage); 8] = [
            |one| one.lines[0].repository = "main".to_owned(),
            |one| one.lines[0].layers.clear(),
            |one| one.lines[0].of_run = 2,
            |one| one.server_run = None,
            |one| one.lines[0].layers[0].label = "newest".to_owned(),
            |one| one.place.directory.path = Some("data".to_owned()),
            |one| one.place.links[0].link = "../a".to_owned(),
            |one| one.place.links.push(one.place.links[0].clone()),
        ];
        for make_wrong in wrong {
            let mut lineage = lineage();
            make_wrong(&mut lineage);
            assert!(decode(&encode(&lineage)).is_err(), "{lineage:?}");
        }
    }

    #[test]
    fn layers_of_another_run_are_listed_and_do_not_count_as_made_in_this_one() {
        let repository = "a".repeat(64);
        let made = |lineage: &Lineage| lineage.layers_of_run().cloned().collect::<Vec<_>>();
        let mut lineage = lineage();
        assert_eq!(made(&lineage), [layer(0)]);
        let same = lineage.clone().lines_in(Some("run"));
        lineage.lines = with_layer(same, &repository, layer(1));
        assert_eq!(made(&lineage), [layer(1), layer(0)]);
        for run in [Some("another"), None] {
            let lines = lineage.clone().lines_in(run);
            assert_eq!(lines[0].layers, [layer(1), layer(0)]);
            assert_eq!(lines[0].of_run, 0);
        }
        let next = lineage.clone().lines_in(Some("another"));
        lineage.lines = with_layer(next, &repository, layer(2));
        assert_eq!(made(&lineage), [layer(2)]);
        lineage.lines = with_layer(lineage.lines, &repository, layer(2));
        assert_eq!(made(&lineage), [layer(2)], "a layer is counted once");
        lineage.lines = with_layer(lineage.lines, &repository, layer(0));
        assert_eq!(made(&lineage), [layer(0), layer(2)]);
    }

    #[test]
    fn a_file_has_the_version_of_what_it_says() {
        let mut one = lineage();
        assert!(encode(&one).starts_with(b"pgstrata lineage 2 "));
        let wrong = record::encode_version(KIND, record::VERSION, &one);
        assert!(decode(&wrong).is_err());
        one.summaries_from_lsn = None;
        one.lines = one.clone().lines_in(None);
        assert!(encode(&one).starts_with(b"pgstrata lineage 1 "));
        let wrong = record::encode_version(KIND, RUN_VERSION, &one);
        assert!(decode(&wrong).is_err());
    }

    #[test]
    fn a_line_grows_at_its_front_and_leaves_the_other_lines_alone() {
        let (one, other) = ("a".repeat(64), "b".repeat(64));
        let mut lines = with_layer(Vec::new(), &one, layer(0));
        for number in 0..MAX_LAYERS + 2 {
            lines = with_layer(lines, &other, layer(number));
        }
        assert_eq!(lines.len(), 2);
        assert_eq!(lines[0].repository, other);
        assert_eq!(lines[0].layers.len(), MAX_LAYERS);
        assert_eq!(lines[0].layers[0], layer(MAX_LAYERS + 1));
        assert_eq!(lines[1].layers, [layer(0)]);
        let again = with_layer(lines.clone(), &other, layer(MAX_LAYERS + 1));
        assert_eq!(again, lines, "a layer is listed once");
        for number in 0..MAX_LINES {
            lines = with_layer(lines, &format!("{number:064x}"), layer(number));
        }
        assert_eq!(lines.len(), MAX_LINES);
        assert_eq!(lines[0].repository, format!("{:064x}", MAX_LINES - 1));
    }
}
