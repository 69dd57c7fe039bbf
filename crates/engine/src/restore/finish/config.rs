//! The configuration that lay outside of the data directory, put where the restored server finds it.
//!
//! The layer's files have been restored below `pgstrata.config`, as any others. From there they go to the directory that
//! the user names, or into the data directory. On the way, what they say about places is made true again: includes lead to
//! where the included files are now, and settings that would lead the server back to its source, to its data above all, are
//! commented out. So are targets of an earlier recovery: the server refuses a second one, and takes one whose name has capitals
//! for a second one even where `postgresql.auto.conf` sets it anew. Files of the data directory itself are changed only for that;
//! `postgresql.auto.conf` is [`crate::restore::settings`]' to rewrite.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::path::{Path, PathBuf};

use pgstrata_layer::entry::EntryKind;
use pgstrata_layer::outside::{Role, TOP, entry_path, parse};
use pgstrata_pgdata::conf::{Mention, quoted, settings, spelling, tokens};
use pgstrata_store::error::{FileContext, Result};

use crate::restore::copy::write::{AUTO_CONF, Below, Writer};
use crate::restore::place::beneath;
use crate::restore::place::claim::Root;
use crate::server::outside::{Syntax, is_read_in_directory, resolve};
use crate::server::recovery_left::names_target;

/// Where included files go that cannot lie beside the file that includes them.
const INCLUDED: &str = "pgstrata.included";

/// How a line begins that a restore took out.
const TAKEN_OUT: &str = "# taken out by pgstrata restore: ";

/// Settings that say where files are: of this server they are elsewhere.
const PLACES: [(&str, Option<Role>); 4] = [
    ("data_directory", None),
    ("hba_file", Some(Role::HbaFile)),
    ("ident_file", Some(Role::IdentFile)),
    ("external_pid_file", None),
];

/// A configuration file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Spot {
    /// One of the three that the server's settings named, from outside.
    Main(Role),
    /// Another one from outside, by the place that it had.
    Included(String),
    /// In the data directory.
    Inside(String),
}

/// A file or directory that a layer has from outside.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) path: String,
    pub(crate) kind: EntryKind,
    pub(crate) mode: u32,
}

/// Puts the configuration in its place.
pub(crate) struct Configuration<'a> {
    roots: &'a [Root],
    writer: &'a Writer<'a>,
    /// The directory that files from outside go to, among the roots.
    root: usize,
    /// Where the three files were, and their permissions.
    mains: BTreeMap<Role, (String, u32)>,
    /// What each included file or directory is, by the place that it had, and its permissions.
    included: BTreeMap<String, (EntryKind, u32)>,
    queue: VecDeque<(Spot, Syntax)>,
    seen: BTreeSet<(Spot, Syntax)>,
    taken_out: BTreeSet<String>,
    /// Parameters that named a target, as they were spelt.
    targets: BTreeSet<String>,
    missing: BTreeSet<String>,
    /// Notes on includes of which the layer does not say for certain which of its files they mean.
    unclear: BTreeSet<String>,
}

/// What is to be known of configuration that is in its place.
pub(crate) struct Settled {
    /// What to say about it.
    pub(crate) notes: Vec<String>,
    /// The parameters that named a target of recovery, as they were spelt; their lines were taken out.
    pub(crate) targets: BTreeSet<String>,
}

impl<'a> Configuration<'a> {
    /// Of the entries of a layer that are from outside; `directory` is the root that they go to.
    pub(crate) fn new(
        roots: &'a [Root],
        writer: &'a Writer<'a>,
        directory: usize,
        entries: &[Entry],
    ) -> Self {
        let (mut mains, mut included) = (BTreeMap::new(), BTreeMap::new());
        for entry in entries {
            match parse(&entry.path) {
                Some((Role::Included, place)) => {
                    included.insert(place.to_owned(), (entry.kind, entry.mode));
                }
                Some((role, place)) if entry.kind != EntryKind::Directory => {
                    mains.insert(role, (place.to_owned(), entry.mode));
                }
                _ => {}
            }
        }
        Self {
            roots,
            writer,
            root: directory,
            mains,
            included,
            queue: VecDeque::new(),
            seen: BTreeSet::new(),
            taken_out: BTreeSet::new(),
            targets: BTreeSet::new(),
            missing: BTreeSet::new(),
            unclear: BTreeSet::new(),
        }
    }

    /// Puts every file in its place.
    pub(crate) fn settle(mut self) -> Result<Settled> {
        self.queue
            .push_back((Spot::Inside(AUTO_CONF.to_owned()), Syntax::Settings));
        for role in [Role::ConfigFile, Role::HbaFile, Role::IdentFile] {
            let spot = self.main(role);
            self.queue.push_back((spot, Syntax::of(role)));
        }
        while let Some((spot, syntax)) = self.queue.pop_front() {
            if !self.seen.insert((spot.clone(), syntax)) {
                continue;
            }
            let Some(text) = self.read(&spot)? else {
                continue;
            };
            let mut new = match syntax {
                Syntax::Settings => self.settings(&spot, &text)?,
                Syntax::Tokens => self.tokens(&spot, &text)?,
            };
            if spot == self.main(Role::ConfigFile) {
                self.append(&mut new);
            }
            if new != text || !matches!(spot, Spot::Inside(_)) {
                let mode = self.mode(&spot);
                self.writer.write_over(&self.place(&spot), &new, mode)?;
            }
        }
        let data = &self.roots[0];
        let top = Path::new(TOP);
        let about = || format!("could not remove \"{}\"", data.path.join(TOP).display());
        if beneath::exists(&data.dir, top).context(about)? {
            beneath::remove_all(&data.dir, top).context(about)?;
        }
        Ok(Settled {
            notes: self.notes(),
            targets: self.targets,
        })
    }

    /// The file that the server takes for that purpose.
    fn main(&self, role: Role) -> Spot {
        match self.mains.contains_key(&role) {
            true => Spot::Main(role),
            false => Spot::Inside(role.usual_name().unwrap_or_default().to_owned()),
        }
    }

    fn read(&self, spot: &Spot) -> Result<Option<Vec<u8>>> {
        let path = match spot {
            Spot::Main(role) => entry_path(*role, &self.mains[role].0),
            Spot::Included(place) => entry_path(Role::Included, place),
            Spot::Inside(path) => path.clone(),
        };
        let data = &self.roots[0];
        beneath::read(&data.dir, Path::new(&path))
            .context(|| format!("could not read \"{}\"", data.path.join(&path).display()))
    }

    /// Where the file goes, or stays.
    fn place(&self, spot: &Spot) -> Below {
        let path = match spot {
            Spot::Inside(path) => {
                return Below {
                    root: 0,
                    path: path.clone(),
                };
            }
            Spot::Main(role) => role.usual_name().unwrap_or_default().to_owned(),
            Spot::Included(place) => self.beside(place),
        };
        Below {
            root: self.root,
            path,
        }
    }

    /// In a directory of configuration files that were together stay together. In the data directory there are others.
    fn beside(&self, place: &str) -> String {
        let config = self.mains.get(&Role::ConfigFile);
        let above = config.and_then(|(config, _)| Path::new(config).parent());
        let below = above.and_then(|above| Path::new(place).strip_prefix(above).ok());
        let usual = |path: &&str| !Role::ALL.iter().any(|role| role.usual_name() == Some(path));
        match below.and_then(Path::to_str).filter(usual) {
            Some(below) if self.root > 0 && !below.is_empty() => below.to_owned(),
            _ => format!("{INCLUDED}{place}"),
        }
    }

    fn mode(&self, spot: &Spot) -> Option<u32> {
        match spot {
            Spot::Main(role) => self.mains.get(role).map(|(_, mode)| *mode),
            Spot::Included(place) => self.included.get(place).map(|(_, mode)| *mode),
            Spot::Inside(_) => None,
        }
    }

    /// The new text of a file of settings.
    fn settings(&mut self, spot: &Spot, text: &[u8]) -> Result<Vec<u8>> {
        let mut edits = Vec::new();
        for setting in settings(text) {
            if let Some(mention) = Mention::of_word(&setting.name) {
                let led = self.lead(spot, mention, &setting.value, Syntax::Settings)?;
                match led {
                    Lead::Same => {}
                    Lead::To(path) => {
                        let line = format!("{} {}", setting.name, quoted(&path));
                        edits.push((setting.line, line.into_bytes()));
                    }
                    Lead::Nowhere => edits.push(taken_out(setting.line.start)),
                }
            } else if self.is_of_another(spot, &setting.name, &setting.value) {
                edits.push(taken_out(setting.line.start));
                self.taken_out.insert(setting.name);
            } else if names_target(&setting.name) && *spot != Spot::Inside(AUTO_CONF.to_owned()) {
                edits.push(taken_out(setting.line.start));
                self.targets.extend(spelling(&text[setting.line]));
            }
        }
        Ok(edited(text, edits))
    }

    /// Whether a setting says where files of the source are.
    fn is_of_another(&self, spot: &Spot, name: &str, value: &[u8]) -> bool {
        let Some((_, role)) = PLACES.iter().find(|(place, _)| *place == name) else {
            return false;
        };
        let is_ours =
            matches!(spot, Spot::Inside(_)) && !self.mains.contains_key(&Role::ConfigFile);
        match role {
            Some(role) => !is_ours || self.mains.contains_key(role),
            None if name == "data_directory" => {
                let data = self.roots[0].path.as_os_str().as_encoded_bytes();
                value != data || !is_ours
            }
            // Two servers on one host would write one file.
            None => !is_ours,
        }
    }

    /// The new text of a file of tokens.
    fn tokens(&mut self, spot: &Spot, text: &[u8]) -> Result<Vec<u8>> {
        let mut edits = Vec::new();
        for token in tokens(text) {
            let list = match token.mention {
                Mention::List => "@",
                _ => "",
            };
            match self.lead(spot, token.mention, &token.path, Syntax::Tokens)? {
                Lead::Same => {}
                Lead::To(path) => {
                    edits.push((token.span, format!("{list}\"{path}\"").into_bytes()));
                }
                Lead::Nowhere => {
                    let before = &text[..token.span.start];
                    let line = before.iter().rposition(|&byte| byte == b'\n');
                    edits.push(taken_out(line.map_or(0, |end| end + 1)));
                }
            }
        }
        Ok(edited(text, edits))
    }

    /// Where the file at `spot` must look for what it names, and has that looked at, too.
    fn lead(&mut self, spot: &Spot, mention: Mention, path: &[u8], syntax: Syntax) -> Result<Lead> {
        let Ok(path) = str::from_utf8(path).map(Path::new) else {
            return Ok(Lead::Same);
        };
        let place = match spot {
            Spot::Main(role) => self.mains[role].0.clone(),
            Spot::Included(place) => place.clone(),
            Spot::Inside(by) if !path.is_absolute() => {
                return self.lead_by_relative(by, mention, path, syntax);
            }
            Spot::Inside(_) => "/".to_owned(),
        };
        let above = Path::new(&place).parent().unwrap_or(Path::new("/"));
        let named = resolve(above, path);
        let named = named.to_str().unwrap_or_default();
        if let Some(led) = self.lead_to_stored(spot, mention, named, syntax)? {
            return Ok(led);
        }
        match mention {
            _ if matches!(spot, Spot::Inside(_)) => Ok(Lead::Same),
            Mention::File | Mention::Directory if !Path::new(named).exists() => {
                self.missing.insert(named.to_owned());
                Ok(Lead::Nowhere)
            }
            _ => Ok(Lead::To(named.to_owned())),
        }
    }

    /// Leads to what the layer has of the place `named`; `None` when it has no such thing.
    fn lead_to_stored(
        &mut self,
        spot: &Spot,
        mention: Mention,
        named: &str,
        syntax: Syntax,
    ) -> Result<Option<Lead>> {
        match self.included.get(named) {
            Some((EntryKind::Directory, mode)) if mention == Mention::Directory => {
                let directory = self.place(&Spot::Included(named.to_owned()));
                self.writer.make_directories(&directory, *mode)?;
                let inside = self.included.iter().filter(|(place, (kind, _))| {
                    *kind != EntryKind::Directory
                        && Path::new(place).parent() == Some(Path::new(named))
                });
                let inside = inside.map(|(place, _)| (Spot::Included(place.clone()), syntax));
                self.queue.extend(inside.collect::<Vec<_>>());
                Ok(Some(Lead::To(self.seen_from(spot, &directory))))
            }
            Some((kind, _)) if *kind != EntryKind::Directory && mention != Mention::Directory => {
                let file = Spot::Included(named.to_owned());
                let to = self.seen_from(spot, &self.place(&file));
                self.queue.push_back((file, syntax));
                Ok(Some(Lead::To(to)))
            }
            _ => Ok(None),
        }
    }

    /// The same for a file of the data directory that names another one by a relative path. One that leads out of the source's
    /// directory is in the layer by the place that it had, and where the source's directory was is not. So the end of that place,
    /// behind the last `..`, must tell, and a note says which one it was.
    fn lead_by_relative(
        &mut self,
        by: &str,
        mention: Mention,
        path: &Path,
        syntax: Syntax,
    ) -> Result<Lead> {
        let data = self.roots[0].path.clone();
        let here = data.join(by);
        let here = resolve(here.parent().unwrap_or(&data), path);
        if let Ok(inside) = here.strip_prefix(&data) {
            self.follow_inside(inside, mention, syntax)?;
            return Ok(Lead::Same);
        }
        let spot = Spot::Inside(by.to_owned());
        let places = self.ending_as(&behind_the_top(by, path), mention);
        match &places[..] {
            [place] if mention != Mention::FileIfExists || !self.is_named(place) => {
                let led = self.lead_to_stored(&spot, mention, place, syntax)?;
                self.unclear.insert(format!(
                    "\"{by}\" includes \"{}\", for which \"{place}\" was taken, because no other place in the layer ends so: look \
                     whether that is the right one before the server is started",
                    path.display()
                ));
                Ok(led.unwrap_or(Lead::Same))
            }
            [] if matches!(mention, Mention::File | Mention::Directory) && !here.exists() => {
                self.missing.insert(path.display().to_string());
                Ok(Lead::Nowhere)
            }
            [] => Ok(Lead::Same),
            _ => {
                // None of them is lost: each goes to its place, and whoever knows says which one is meant.
                let mut kept = Vec::new();
                for place in &places {
                    self.lead_to_stored(&spot, mention, place, syntax)?;
                    let below = self.place(&Spot::Included(place.clone()));
                    kept.push(format!("\"{}\"", self.full(&below)));
                }
                self.unclear.insert(format!(
                    "\"{by}\" includes \"{}\", which may be any of {} in the layer, or none of them: name the right one there \
                     before the server is started",
                    path.display(),
                    kept.join(", ")
                ));
                Ok(Lead::Same)
            }
        }
    }

    /// Whether another line includes what had that place. Then nothing tells that a file which need not exist was that one.
    fn is_named(&self, place: &str) -> bool {
        let file = Spot::Included(place.to_owned());
        let mut known = self.queue.iter().chain(&self.seen);
        known.any(|(spot, _)| *spot == file)
    }

    /// The places of the layer's included files, or directories, that end so.
    fn ending_as(&self, end: &Path, mention: Mention) -> Vec<String> {
        let wanted = mention == Mention::Directory;
        let included = self.included.iter().filter(|(place, (kind, _))| {
            (*kind == EntryKind::Directory) == wanted && Path::new(place).ends_with(end)
        });
        match end.as_os_str().is_empty() {
            true => Vec::new(),
            false => included.map(|(place, _)| place.clone()).collect(),
        }
    }

    /// What a file of the data directory names there.
    fn follow_inside(&mut self, named: &Path, mention: Mention, syntax: Syntax) -> Result<()> {
        // No server starts with files that include one another in a circle.
        let Some(named) = named.to_str().filter(|named| !named.is_empty()) else {
            return Ok(());
        };
        if mention != Mention::Directory {
            self.queue
                .push_back((Spot::Inside(named.to_owned()), syntax));
            return Ok(());
        }
        let data = &self.roots[0];
        let about = || format!("could not list \"{}\"", data.path.join(named).display());
        if !beneath::exists(&data.dir, Path::new(named)).context(about)? {
            return Ok(());
        }
        let directory = beneath::directory(&data.dir, Path::new(named)).context(about)?;
        for name in beneath::names(&directory).context(about)? {
            let name = name.to_string_lossy();
            if is_read_in_directory(&name) {
                let file = Spot::Inside(format!("{named}/{name}"));
                self.queue.push_back((file, syntax));
            }
        }
        Ok(())
    }

    /// `to` as the file at `spot` has to name it: a directory can be moved with all that names its own files.
    fn seen_from(&self, spot: &Spot, to: &Below) -> String {
        let from = self.place(spot);
        match from.root == to.root {
            true => format!(
                "{}{}",
                "../".repeat(from.path.matches('/').count()),
                to.path
            ),
            false => self.full(to),
        }
    }

    fn full(&self, below: &Below) -> String {
        let path = self.roots[below.root].path.join(&below.path);
        path.display().to_string()
    }

    /// What a server must be told whose files are not all in one directory.
    fn append(&self, text: &mut Vec<u8>) {
        let config = self.place(&self.main(Role::ConfigFile)).root;
        let mut lines = Vec::new();
        if config != 0 {
            let data = self.roots[0].path.display().to_string();
            lines.push(("data_directory", data));
        }
        for role in [Role::HbaFile, Role::IdentFile] {
            let place = self.place(&self.main(role));
            // Without these the server looks in the data directory when it is told both directories.
            if config != 0 || place.root != config {
                lines.push((role.name(), self.full(&place)));
            }
        }
        if lines.is_empty() {
            return;
        }
        if !text.is_empty() && !text.ends_with(b"\n") {
            text.push(b'\n');
        }
        text.extend_from_slice(b"# added by pgstrata restore\n");
        for (name, value) in lines {
            text.extend_from_slice(format!("{name} = {}\n", quoted(&value)).as_bytes());
        }
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let directory = self.roots[self.root].path.display();
        let placed = self.mains.iter().map(|(role, (place, _))| {
            let name = role.usual_name().unwrap_or_default();
            format!("{name} (was {place})")
        });
        let placed: Vec<String> = placed.collect();
        if !placed.is_empty() {
            notes.push(format!(
                "configuration from outside of the source's data directory is in \"{directory}\": {}; pg_ctl -D \"{directory}\" starts the server with it",
                placed.join(", ")
            ));
        }
        let taken_out: Vec<&str> = self.taken_out.iter().map(String::as_str).collect();
        if !taken_out.is_empty() {
            notes.push(format!(
                "taken out of the configuration, because they name files of the source: {}",
                taken_out.join(", ")
            ));
        }
        let targets: Vec<&str> = self.targets.iter().map(String::as_str).collect();
        if !targets.is_empty() {
            notes.push(format!(
                "taken out of the configuration, because a server takes one target of recovery at a time: {}",
                targets.join(", ")
            ));
        }
        notes.extend(self.unclear.iter().cloned());
        for missing in &self.missing {
            notes.push(format!(
                "the include of \"{missing}\" was taken out of the configuration: the file is neither in the layer nor on this host"
            ));
        }
        notes
    }
}

/// What becomes of the name of a file.
enum Lead {
    /// It stays.
    Same,
    /// The file is there now.
    To(String),
    /// There is no such file.
    Nowhere,
}

/// What follows the last `..` with which `path`, named by the file `by` of the data directory, leads out of that.
fn behind_the_top(by: &str, path: &Path) -> PathBuf {
    let top = Path::new("/");
    let above = top.join(by);
    // At the root of a file system `..` leads nowhere.
    let resolved = resolve(above.parent().unwrap_or(top), path);
    let behind = resolved.strip_prefix(top).map(Path::to_owned);
    behind.unwrap_or_default()
}

type Edit = (Range<usize>, Vec<u8>);

fn taken_out(line_start: usize) -> Edit {
    (line_start..line_start, TAKEN_OUT.as_bytes().to_vec())
}

/// `text` with each range replaced; the ranges ascend.
fn edited(text: &[u8], edits: Vec<Edit>) -> Vec<u8> {
    let mut new = Vec::with_capacity(text.len());
    let mut at = 0;
    for (range, replacement) in edits {
        // Two words of one line may both want it taken out.
        if range.start < at {
            continue;
        }
        new.extend_from_slice(&text[at..range.start]);
        new.extend_from_slice(&replacement);
        at = range.end;
    }
    new.extend_from_slice(&text[at..]);
    new
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_last_way_out_is_known_wherever_the_directory_was() {
        for (by, path, behind) in [
            ("postgresql.conf", "../site.conf", "site.conf"),
            ("postgresql.conf", "../../etc/site.conf", "etc/site.conf"),
            ("postgresql.conf", "../a/../site.conf", "site.conf"),
            ("conf.d/a.conf", "../../conf.d/./b.conf", "conf.d/b.conf"),
            ("conf.d/a.conf", "../..", ""),
        ] {
            assert_eq!(
                behind_the_top(by, Path::new(path)),
                Path::new(behind),
                "{path}"
            );
        }
    }
}
