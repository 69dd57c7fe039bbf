//! The backup program as the experiments run it, and who else takes part.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::contenders::Peers;
use crate::contenders::contender::{Arena, Contender, tree_bytes};
use crate::contenders::native::Native;
use crate::contenders::pgstrata::{CLUSTER, Pgstrata, Storage};
use crate::experiments::extension::Extension;
use crate::experiments::shared::Usage;
use crate::experiments::stage::Stage;
use crate::experiments::unpack::{self, Layer, Objects};
use crate::measure::environment::{self, Environment};
use crate::measure::programs::Programs;
use crate::measure::result::FOREIGN;
use crate::measure::session;
use crate::number::real_u64;
use pgstrata_testbed::cluster::Major;

/// What one server serves in most experiments.
pub(super) const ALL_ARMS: &str = "all arms";

/// Everybody who can take part here: `pgstrata` with these change sources, the
/// server's own tools where they know increments, and what is installed and knows
/// this server, each with every way to find what changed; without one nobody else.
pub(super) fn contenders<'a>(
    sources: &[String],
    storage: &'a Storage,
    others: Option<Peers>,
) -> Vec<Box<dyn Contender + 'a>> {
    let peers = peers(storage, others);
    let archives = archives(peers.iter().map(|peer| peer.tool()));
    let mut all: Vec<Box<dyn Contender + 'a>> = Vec::new();
    all.extend(sources.iter().map(|source| -> Box<dyn Contender + 'a> {
        Box::new(pgstrata(source, archives, storage))
    }));
    let way = |it: &dyn Contender| (it.tool(), it.change_source().to_owned());
    for peer in peers {
        if all
            .iter()
            .all(|other| way(other.as_ref()) != way(peer.as_ref()))
        {
            all.push(peer);
        }
    }
    all
}

/// What else takes part. The others' repositories are directories.
fn peers(storage: &Storage, others: Option<Peers>) -> Vec<Box<dyn Contender>> {
    match (storage, others) {
        (Storage::Directory, Some(others)) => others.installed(),
        _ => Vec::new(),
    }
}

/// Whether WAL is archived for `pgstrata`, too, beside these: every tool but the server's own has all WAL archived while it
/// takes a backup, and who streams has less to do.
fn archives(peers: impl IntoIterator<Item = String>) -> bool {
    peers.into_iter().any(|tool| tool != Native.tool())
}

/// The same of those who take part here.
pub(super) fn is_archived(storage: &Storage, others: Option<Peers>) -> bool {
    archives(peers(storage, others).iter().map(|peer| peer.tool()))
}

/// `pgstrata` with this change source, as it is installed.
pub(super) fn pgstrata<'a>(
    change_source: &str,
    archives: bool,
    storage: &'a Storage,
) -> Pgstrata<'a> {
    Pgstrata {
        baseline: false,
        change_source: change_source.to_owned(),
        compress: None,
        impact: None,
        archives,
        sealed: false,
        storage,
    }
}

/// How a backup is called where WAL is archived, and where it is not.
pub(super) fn wal_words(archives: bool) -> &'static str {
    if archives { "" } else { " --wal stream" }
}

/// Notes the release of every tool that takes part.
pub(super) fn note_releases(
    stage: &mut Stage,
    arena: &Arena,
    contenders: &[Box<dyn Contender + '_>],
) {
    let mut releases = BTreeMap::new();
    for contender in contenders {
        let said = contender.version(arena).output();
        let said = said.map_or_else(|_| Vec::new(), |output| output.stdout);
        let said = String::from_utf8_lossy(&said).trim().to_owned();
        let release = said.lines().next().unwrap_or("does not say its release");
        releases.insert(contender.tool(), release.to_owned());
    }
    let each = releases
        .iter()
        .map(|(tool, release)| format!("{tool}: {release}"));
    let each: Vec<String> = each.collect();
    stage.note(format!("Releases: {}.", each.join("; ")));
}

/// How a server of this version can say what changed, the best first.
pub(super) fn sources(major: Major) -> &'static [&'static str] {
    // WAL summaries came with 17.
    if major >= Major::V17 {
        &["tracker", "summary", "lsn", "digest"]
    } else {
        &["tracker", "lsn", "digest"]
    }
}

/// Those asked for, or else these.
pub(super) fn chosen(asked: &[String], otherwise: &[&str], major: Major) -> Result<Vec<String>> {
    let known = sources(major);
    if let Some(other) = asked
        .iter()
        .find(|source| !known.contains(&source.as_str()))
    {
        return Err(Usage(format!(
            "could not use change source \"{other}\" with PostgreSQL {major}: it has {}",
            known.join(", ")
        ))
        .into());
    }
    Ok(match asked {
        [] => otherwise.iter().map(|&source| source.to_owned()).collect(),
        asked => asked.to_vec(),
    })
}

/// The extension, where the tracker is among the change sources.
pub(super) fn tracker(
    sources: &[String],
    programs: &Programs,
    given: Option<&Path>,
) -> Result<Option<Extension>> {
    let wanted = sources.iter().any(|source| source == "tracker");
    wanted.then(|| Extension::find(programs, given)).transpose()
}

/// The arms: one full backup of ours, one incremental per change source, and both of every other tool.
pub(super) fn arms(contenders: &[Box<dyn Contender + '_>]) -> Vec<(String, String)> {
    acts(contenders)
        .iter()
        .map(|(index, full)| {
            let contender = &contenders[*index];
            if *full {
                (
                    format!("{} full", contender.tool()),
                    format!("a full backup; {}", contender.words()),
                )
            } else {
                (
                    format!("{} incr", contender.name()),
                    format!(
                        "an incremental backup on the full one; {}",
                        contender.words()
                    ),
                )
            }
        })
        .collect()
}

/// (contender, whether full); configurations of one tool share its full backup.
pub(super) fn acts(contenders: &[Box<dyn Contender + '_>]) -> Vec<(usize, bool)> {
    let mut acts = Vec::new();
    let ours = |index: usize| contenders[index].tool().starts_with("pgstrata");
    for (index, contender) in contenders.iter().enumerate() {
        let mut before = contenders[..index].iter();
        if before.all(|other| other.tool() != contender.tool()) {
            acts.push((index, true));
        }
    }
    acts.extend((0..contenders.len()).map(|index| (index, false)));
    // Ours first, each tool's full before its increments.
    acts.sort_by_key(|(index, full)| {
        let ours = ours(*index);
        (!ours, if ours { 0 } else { *index }, !*full, *index)
    });
    acts
}

/// Pages of main forks in the newest layer of a repository that is a directory.
pub(super) fn pages_of_newest(repository: &Path) -> Result<u64> {
    let directory = repository.join(CLUSTER).join("layer");
    let labels = std::fs::read_dir(&directory)
        .with_context(|| format!("could not list \"{}\"", directory.display()))?
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    // Labels sort by time within a chain.
    let newest = labels.max().context("the repository has no layer")?;
    let objects = Objects::Directory(repository.to_owned());
    let layers = unpack::chain(&objects, CLUSTER, &[newest])?;
    Ok(layers.iter().map(Layer::main_pages_stored).sum())
}

/// The machine and the server, for the record.
pub(super) fn environment(arena: &Arena) -> Result<Environment> {
    let mut client = session::connect(&arena.cluster.conninfo("postgres"))?;
    let data = arena.cluster.pgdata();
    Ok(environment::of_server(&mut client, Some(data)))
}

/// The same of the first arm, for the record of an experiment in which one server serves `served`: "all arms".
pub(super) fn capture(stage: &mut Stage, arena: &Arena, served: &str) -> Result<Environment> {
    let mut found = environment(arena)?;
    if let Some(arm) = stage.experiment.arms.first_mut() {
        found.found(environment::SERVED, served);
        arm.environment.get_or_insert_with(|| found.clone());
    }
    Ok(found)
}

/// Runs a command and says what it cost, in the values of a run.
pub(super) fn measured(
    arena: &Arena,
    contender: &dyn Contender,
    command: &mut Command,
) -> Result<BTreeMap<String, f64>> {
    let before = tree_bytes(&contender.repository(arena)).unwrap_or(0);
    let (cost, _) = arena.measured(command)?;
    let after = tree_bytes(&contender.repository(arena)).unwrap_or(0);
    Ok(BTreeMap::from([
        ("time".to_owned(), cost.wall_seconds),
        ("cpu".to_owned(), cost.cpu_seconds),
        ("server_cpu".to_owned(), cost.server_cpu_seconds),
        ("read".to_owned(), real_u64(cost.read_bytes)),
        ("written".to_owned(), real_u64(cost.written_bytes)),
        ("memory".to_owned(), real_u64(cost.peak_bytes)),
        (FOREIGN.to_owned(), cost.foreign_share),
        ("stored".to_owned(), real_u64(after.saturating_sub(before))),
    ]))
}

#[cfg(test)]
mod tests {
    use super::{Contender, Native, Storage, acts, archives, pgstrata};

    #[test]
    fn wal_is_archived_for_ours_where_a_peer_archives() {
        let beside = |peers: &[&str]| archives(peers.iter().map(|&peer| peer.to_owned()));
        assert!(!beside(&[]));
        assert!(!beside(&["native"]));
        assert!(beside(&["native", "pgbackrest"]));
        let words = |archives| pgstrata("lsn", archives, &Storage::Directory).words();
        assert!(words(true).contains("WAL archived"));
        assert!(words(false).contains("WAL with the backup"));
    }

    #[test]
    fn configurations_of_one_tool_share_its_full_backup() {
        let contenders: [Box<dyn Contender>; 2] = [Box::new(Native), Box::new(Native)];
        assert_eq!(acts(&contenders), [(0, true), (0, false), (1, false)]);
    }
}
