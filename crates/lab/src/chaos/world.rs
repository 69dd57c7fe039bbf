//! The world of a run: one directory with the server, its repository and its copies, and the program beside them.

use std::fs::{self, Permissions};
use std::mem;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use pgstrata_testbed::cluster::{Adoption, Cluster, Major, SUPERUSER, StopMode, TrackedServer};
use pgstrata_testbed::programs::copy_program;
use serde_json::Value;

use super::chance::Chance;
use super::explain::{Excuse, finding};
use super::log::{Step, found};
use super::program::{Outcome, Planned, Run};
use super::store::Store;
use super::truth::{Layer, Lsn, Place, Truth};

/// The cluster's name in the repository.
pub(super) const NAME: &str = "main";

/// A server of some MB recovers and promotes within seconds; a machine may be busy.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// What the seed decides about the whole run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// Whether the server archives; without an archive only ends of layers are owed.
    pub(super) archives: bool,
    /// Whether the repository is on an S3 server behind a faulty network.
    pub(super) is_on_s3: bool,
    pub(super) checksums: bool,
    autovacuum: bool,
    pub(super) wal_segment_mb: u64,
    /// Whether a repository in a directory has a disk of its own, which can be full.
    pub(super) has_disk: bool,
    /// Whether the cluster is encrypted.
    pub(super) is_sealed: bool,
    /// Whether a bucket keeps versions of its objects.
    pub(super) has_versions: bool,
}

impl Shape {
    pub(super) fn of(chance: &mut Chance) -> Self {
        Self {
            archives: chance.percent(75),
            is_on_s3: chance.percent(30),
            checksums: chance.percent(70),
            autovacuum: chance.percent(50),
            wal_segment_mb: *chance.one(&[1, 1, 4, 16]).unwrap_or(&16),
            has_disk: chance.percent(50),
            is_sealed: chance.percent(30),
            // The last one, so that seeds from before have the rest as it was.
            has_versions: chance.percent(50),
        }
    }

    /// In words, for the log.
    pub(super) fn words(self) -> String {
        let with = |is: bool, what: &str| format!("{} {what}", if is { "with" } else { "without" });
        format!(
            "{}, {}, {}, {}, {}, {}, {}, WAL segments of {} MB",
            with(self.archives, "archive"),
            with(self.is_on_s3, "S3"),
            with(self.has_versions, "versions"),
            with(self.has_disk, "a disk of its own"),
            with(self.is_sealed, "seals"),
            with(self.checksums, "checksums"),
            with(self.autovacuum, "autovacuum"),
            self.wal_segment_mb
        )
    }
}

/// What limits a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    Descriptors(u64),
    /// KiB that a file may have.
    FileSize(u64),
    /// Processes and threads that the user may have, those of others included.
    Processes(u64),
}

impl Limit {
    fn shell(self) -> String {
        let (option, value) = match self {
            Self::Descriptors(count) => ("n", count),
            Self::FileSize(count) => ("f", count),
            Self::Processes(count) => ("u", count),
        };
        // The shell's own trap turns the signal for files that grow too large into an error.
        format!("ulimit -{option} {value} && trap '' XFSZ && exec \"$0\" \"$@\"")
    }
}

/// A command that is to be run.
#[derive(Debug, Default)]
pub(super) struct Call {
    pub(super) words: Vec<String>,
    pub(super) disturb: Option<Planned>,
    pub(super) limit: Option<Limit>,
    /// Whether the store denies what this command asks.
    pub(super) denied: bool,
    /// Whether it works on the copy of the repository.
    pub(super) is_on_mirror: bool,
    /// Whether it has the second reader's identity.
    pub(super) is_by_reader: bool,
}

impl Call {
    pub(super) fn of<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let words = words.into_iter().map(str::to_owned).collect();
        Self {
            words,
            ..Self::default()
        }
    }

    pub(super) fn with<'a>(mut self, words: impl IntoIterator<Item = &'a str>) -> Self {
        self.words.extend(words.into_iter().map(str::to_owned));
        self
    }

    /// With these options before the command's own words.
    pub(super) fn with_first<'a>(mut self, words: impl IntoIterator<Item = &'a str>) -> Self {
        let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
        self.words.splice(0..0, words);
        self
    }

    pub(super) fn disturbed(mut self, planned: Option<Planned>) -> Self {
        self.disturb = planned;
        self
    }

    pub(super) fn on_mirror(mut self, is_on_mirror: bool) -> Self {
        self.is_on_mirror = is_on_mirror;
        self
    }

    /// With the second reader's identity.
    pub(super) fn by_reader(mut self) -> Self {
        self.is_by_reader = true;
        self
    }
}

/// What a reader of a sealed cluster can read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    None,
    /// At least what was sealed since he was let in.
    Present,
    All,
}

/// Somebody beside the one whose identity commands have.
#[derive(Debug)]
pub(super) struct SecondReader {
    pub(super) recipient: String,
    pub(super) access: Access,
}

/// A data directory with the directory of its tablespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Home {
    pub(super) data: PathBuf,
    pub(super) space: PathBuf,
}

impl Home {
    /// Removes both.
    pub(super) fn remove(&self) -> Result<()> {
        remove_tree(&self.data)?;
        remove_tree(&self.space)
    }
}

/// A server of the same cluster on another timeline, which lives beside the one that steps are about.
#[derive(Debug)]
pub(super) struct Sibling {
    pub(super) server: Cluster,
    home: Home,
    snapshot: Option<(Home, Place)>,
    is_stirred: bool,
    sealed: Option<String>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct World {
    pub(super) directory: PathBuf,
    pub(super) server: Cluster,
    pub(super) home: Home,
    /// The server of the timeline that the truth knows as the sibling's.
    pub(super) sibling: Option<Sibling>,
    pub(super) shape: Shape,
    pub(super) truth: Truth,
    pub(super) store: Store,
    /// The second reader of a sealed cluster.
    pub(super) reader: Option<SecondReader>,
    /// A cold copy of the server's directories, and where the server was then.
    pub(super) snapshot: Option<(Home, Place)>,
    /// The tablespace, as `--tablespace-map` wants it.
    pub(super) space_oid: String,
    /// Whether the server has changed since the last moment.
    pub(super) is_stirred: bool,
    /// Whether the server has come by its LSNs before, on the same timeline.
    pub(super) is_reverted: bool,
    /// The last segment that the archive was seen to take, on the server's timeline.
    pub(super) sealed: Option<String>,
    pub(super) program: PathBuf,
    tracked: Option<TrackedServer>,
    serial: u64,
}

/// With what a world is made.
#[derive(Debug)]
pub(super) struct Origin<'a> {
    pub(super) directory: &'a Path,
    pub(super) major: Major,
    pub(super) program: &'a Path,
    pub(super) tracker: bool,
}

impl World {
    /// Makes a server with a repository in an empty directory.
    pub(super) fn make(origin: &Origin<'_>, shape: Shape) -> Result<Self> {
        let directory = origin.directory;
        let tracked = match origin.tracker {
            true => Some(TrackedServer::copy(origin.major)?),
            false => None,
        };
        let made = create(origin.major, tracked.as_ref(), shape)?;
        made.own(directory)?;
        fs::create_dir(directory.join("steps")).context("could not create a directory for logs")?;
        let home = Home {
            data: directory.join("main-0"),
            space: directory.join("space-0"),
        };
        copy_tree(made.pgdata(), &home.data)?;
        let store = Store::make(&made, directory, &shape)?;
        let program = directory.join("pgstrata");
        copy_program(origin.program, &program)?;
        let server = adopt(origin.major, &home.data, tracked.as_ref()).prepare()?;
        drop(made);
        let mut world = Self {
            directory: directory.to_owned(),
            server,
            home,
            sibling: None,
            shape,
            truth: Truth::new(),
            store,
            reader: None,
            snapshot: None,
            space_oid: String::new(),
            is_stirred: true,
            is_reverted: false,
            sealed: None,
            program,
            tracked,
            serial: 0,
        };
        world.set_up()?;
        Ok(world)
    }

    fn set_up(&mut self) -> Result<()> {
        if self.shape.archives {
            self.server.append_conf("archive_mode", "on")?;
            let command = self.store.archive_command(&self.program);
            self.server.append_conf("archive_command", &command)?;
        }
        self.server.start()?;
        self.make_dir(&self.home.space)?;
        let space = format!(
            "CREATE TABLESPACE space LOCATION '{}'; CREATE TABLESPACE inside LOCATION '';
             CREATE TABLE ledger_one (id bigint, amount int); CREATE TABLE ledger_two (id bigint, amount int)",
            self.home.space.display()
        );
        self.sql(&space)?;
        if self.tracked.is_some() {
            self.sql("CREATE EXTENSION pgstrata")?;
        }
        self.space_oid = self.sql("SELECT oid FROM pg_tablespace WHERE spcname = 'space'")?;
        let mut step = Step::new(0, "init");
        let mut words = self.pgdata_words("init");
        if let Some(file) = self.store.identity().map(Path::to_owned) {
            let first = self.generate_key(&file, &mut step)?;
            let sealed = ["--encrypt", "--one-recipient", "--recipient", &first];
            words.extend(sealed.map(str::to_owned));
            let file = self.second_identity();
            self.reader = Some(SecondReader {
                recipient: self.generate_key(&file, &mut step)?,
                access: Access::None,
            });
        }
        let init = Call {
            words,
            ..Call::default()
        };
        self.demand(init, &mut step).map(drop)
    }

    /// Makes an identity; returns its recipient.
    fn generate_key(&mut self, file: &Path, step: &mut Step) -> Result<String> {
        let file = file.display().to_string();
        let made = self.demand(Call::of(["key", "generate", &file]), step)?;
        Ok(made.stdout.trim().to_owned())
    }

    fn second_identity(&self) -> PathBuf {
        self.directory.join("second.identity")
    }

    /// What the second reader of a sealed cluster can read.
    pub(super) fn access(&self) -> Access {
        let reader = self.reader.as_ref();
        reader.map_or(Access::None, |reader| reader.access)
    }

    /// Creates a directory of the server's user, as closed as PostgreSQL wants it.
    pub(super) fn make_dir(&self, path: &Path) -> Result<()> {
        fs::create_dir(path).with_context(|| format!("could not create \"{}\"", path.display()))?;
        fs::set_permissions(path, Permissions::from_mode(0o700))
            .with_context(|| format!("could not close \"{}\"", path.display()))?;
        self.server.own(path)
    }

    /// A number that was not given before, for names.
    pub(super) fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }

    /// Directories that are not there yet.
    pub(super) fn new_home(&mut self, name: &str) -> Home {
        let serial = self.next_serial();
        Home {
            data: self.directory.join(format!("{name}-{serial}")),
            space: self.directory.join(format!("{name}-{serial}-space")),
        }
    }

    /// Starts the server, and waits until its recovery is over: where a server in recovery lets nobody in, `pg_ctl` does
    /// not wait for that.
    pub(super) fn start_server(&self) -> Result<()> {
        self.server.start()?;
        self.server.wait_promoted(PATIENCE)
    }

    /// Whether the repository may have WAL of another history under the names that the server writes next.
    pub(super) fn may_repeat_names(&self) -> bool {
        self.is_reverted && !self.shape.archives
    }

    /// A query in the database that is always there.
    pub(super) fn sql(&self, script: &str) -> Result<String> {
        self.server.sql(SUPERUSER, script)
    }

    pub(super) fn is_tracked(&self) -> bool {
        self.tracked.is_some()
    }

    /// A command on the main server's data directory.
    pub(super) fn pgdata_words(&self, act: &str) -> Vec<String> {
        let pgdata = self.server.pgdata().display().to_string();
        ["--output", "json", act, "--pgdata", &pgdata]
            .map(str::to_owned)
            .into()
    }

    /// A backup of the main server, whose checkpoint is made at once: a spread one takes minutes.
    pub(super) fn backup_call(&self) -> Call {
        Call {
            words: self.pgdata_words("backup"),
            ..Call::default()
        }
        .with(["--checkpoint", "fast"])
    }

    /// A server on another directory, which archives nothing.
    pub(super) fn copy_of(&self, data: &Path) -> Adoption {
        adopt(self.server.major(), data, None)
            .conf("archive_mode", "off")
            .conf("shared_preload_libraries", "")
    }

    /// Goes on with another directory as the main server, which is not started.
    pub(super) fn move_to(&mut self, home: Home) -> Result<()> {
        let major = self.server.major();
        self.server = adopt(major, &home.data, self.tracked.as_ref()).prepare()?;
        self.home = home;
        Ok(())
    }

    /// Goes on with another directory, which is not started, as a second server beside the one that there is.
    pub(super) fn live_beside(&mut self, home: Home) -> Result<()> {
        let copy = adopt(self.server.major(), &home.data, self.tracked.as_ref()).prepare()?;
        self.sibling = Some(Sibling {
            server: mem::replace(&mut self.server, copy),
            home: mem::replace(&mut self.home, home),
            snapshot: self.snapshot.take(),
            is_stirred: self.is_stirred,
            sealed: self.sealed.take(),
        });
        self.truth.sibling = Some(self.truth.current);
        Ok(())
    }

    /// Goes on with the other one of two servers. False when there is only one.
    pub(super) fn change_places(&mut self) -> bool {
        let (Some(other), Some(timeline)) = (&mut self.sibling, &mut self.truth.sibling) else {
            return false;
        };
        mem::swap(&mut self.server, &mut other.server);
        mem::swap(&mut self.home, &mut other.home);
        mem::swap(&mut self.snapshot, &mut other.snapshot);
        mem::swap(&mut self.is_stirred, &mut other.is_stirred);
        mem::swap(&mut self.sealed, &mut other.sealed);
        mem::swap(&mut self.truth.current, timeline);
        true
    }

    /// The other one of two servers is stopped, and goes with all its directories.
    pub(super) fn bury_sibling(&mut self) -> Result<()> {
        let Some(gone) = self.sibling.take() else {
            return Ok(());
        };
        self.truth.part();
        drop(gone.server);
        gone.home.remove()?;
        gone.snapshot.map_or(Ok(()), |(home, _)| home.remove())
    }

    /// What recovery asks the archive with when it is to know of timelines, and of no WAL.
    pub(super) fn history_command(&self) -> String {
        let push = self.store.archive_command(&self.program);
        let get = push.replace("archive-push %p", "archive-get %f %p");
        format!("case %f in *.history) {get};; *) exit 1;; esac")
    }

    /// The program with these words.
    fn command(&self, call: &Call) -> Command {
        let mut command = match call.limit {
            None => self.server.command_as_server_user(&self.program),
            Some(limit) => {
                let mut shell = self.server.command_as_server_user(Path::new("/bin/bash"));
                shell.arg("-c").arg(limit.shell()).arg(&self.program);
                shell
            }
        };
        command
            .env("PGSTRATA_CLUSTER", NAME)
            .envs(match call.is_on_mirror {
                true => self.store.mirror_environment(),
                false => self.store.environment(call.denied),
            })
            .arg("--no-progress")
            .args(&call.words);
        if call.is_by_reader {
            command.env("PGSTRATA_IDENTITY", self.second_identity());
        }
        command
    }

    /// Starts the program.
    pub(super) fn start(&mut self, call: &Call, step: &Step) -> Result<Run> {
        let serial = self.next_serial();
        let is_act = |word: &&String| {
            let is_option = word.starts_with('-') || word.contains('=');
            !is_option && !["json", "info"].contains(&word.as_str())
        };
        let act = call
            .words
            .iter()
            .find(is_act)
            .map_or("info", String::as_str);
        let stem = self
            .directory
            .join(format!("steps/{:04}-{serial}-{act}", step.number()));
        let stem = stem.display().to_string();
        Run::start(self.command(call), &call.words, &stem, call.disturb)
    }

    /// Runs the program to its end, which must be a success or be explained.
    pub(super) fn run(
        &mut self,
        call: &Call,
        excuses: &[Excuse],
        step: &mut Step,
    ) -> Result<Outcome> {
        let run = self.start(call, step)?;
        self.finish(run, excuses, step)
    }

    /// Waits for the end of a run, which must be a success or be explained.
    pub(super) fn finish(&self, run: Run, excuses: &[Excuse], step: &mut Step) -> Result<Outcome> {
        let outcome = run.finish()?;
        step.ran(&outcome);
        match finding(&outcome, excuses) {
            Some(what) => found(what),
            None => Ok(outcome),
        }
    }

    /// Runs the program, which must succeed.
    pub(super) fn demand(&mut self, call: Call, step: &mut Step) -> Result<Outcome> {
        self.run(&call, &[], step)
    }

    /// Stops the server, which may be down already.
    pub(super) fn stop(&self, mode: StopMode) -> Result<()> {
        self.server.stop(mode)
    }

    /// Where the server is.
    pub(super) fn place(&self) -> Result<Place> {
        let found = self.sql(
            "SELECT substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8) || ' ' || pg_current_wal_insert_lsn()",
        )?;
        let (timeline, lsn) = found.split_once(' ').context("the server names no place")?;
        Ok(Place {
            timeline: u32::from_str_radix(timeline, 16).context("not a timeline")?,
            lsn: Lsn::parse(lsn)?,
        })
    }

    /// Learns the timeline that the server has begun, and its history.
    pub(super) fn learn_timeline(&mut self) -> Result<Place> {
        let place = self.place()?;
        if place.timeline == self.truth.current && !self.truth.is_ambiguous {
            return Ok(place);
        }
        if place.timeline == 1 {
            self.truth.current = 1;
            return Ok(place);
        }
        let name = format!("pg_wal/{:08X}.history", place.timeline);
        let path = self.server.pgdata().join(name);
        let text = fs::read_to_string(&path)
            .with_context(|| format!("could not read \"{}\"", path.display()))?;
        self.truth.begin(place.timeline, history(&text)?);
        Ok(place)
    }

    /// Keeps the layer that a backup reports. Whoever told what changed since its parent must have that in his past.
    pub(super) fn keep_layer(&mut self, document: &Value) -> Result<Layer> {
        let layer = layer(document)?;
        let used = document["change_source"]["used"].as_str();
        let used = used.context("the backup names no change source")?;
        let parent = layer.parent.as_deref().filter(|_| used != "digest");
        if let Some(parent) = parent
            && !self.truth.may_stand_on(&layer, parent)
        {
            return found(format!(
                "layer {} of timeline {} takes from {used} what changed since {parent}, which is not in its past",
                layer.label, layer.stop.timeline
            ));
        }
        let label = layer.label.clone();
        self.truth.layers.insert(label, layer.clone());
        Ok(layer)
    }

    /// The layers that the repository lists, compared with those that are known of.
    pub(super) fn layers(&mut self, step: &mut Step) -> Result<(Vec<Layer>, Value)> {
        let info = self.start(&Call::of(["--output", "json", "info"]), step)?;
        let outcome = self.finish(info, &[super::explain::excuse(&[3], &[])], step)?;
        let document = outcome.document()?;
        let layers = document["layers"]
            .as_array()
            .context("info lists no layers")?;
        let layers = layers.iter().map(layer).collect::<Result<Vec<_>>>()?;
        Ok((layers, document))
    }
}

/// What `backup` and `info` say of a layer.
pub(super) fn layer(document: &Value) -> Result<Layer> {
    let text = |key: &str| document[key].as_str().with_context(|| format!("no {key}"));
    let timeline = document["timeline"].as_u64().context("no timeline")?;
    Ok(Layer {
        label: text("label")?.to_owned(),
        is_full: text("type")? == "full",
        parent: document["parent"].as_str().map(str::to_owned),
        stop: Place {
            timeline: u32::try_from(timeline)?,
            lsn: Lsn::parse(text("stop_lsn")?)?,
        },
        ended: text("finished_at")?.parse().context("not a time")?,
    })
}

/// The lines of a history file: each timeline, and where it was left.
fn history(text: &str) -> Result<Vec<Place>> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let places = lines.map(|line| {
        let mut fields = line.split_whitespace();
        let timeline = fields.next().context("no timeline")?.parse()?;
        let lsn = Lsn::parse(fields.next().context("no LSN")?)?;
        Ok(Place { timeline, lsn })
    });
    places.collect()
}

fn create(major: Major, tracked: Option<&TrackedServer>, shape: Shape) -> Result<Cluster> {
    let builder = tracked.map_or_else(
        || Cluster::builder(major),
        |server| server.builder().conf("pgstrata.map_size", "16"),
    );
    let mut builder = builder
        .checksums(shape.checksums)
        .initdb_arg(&format!("--wal-segsize={}", shape.wal_segment_mb))
        .conf("autovacuum", if shape.autovacuum { "on" } else { "off" })
        .conf("autovacuum_naptime", "1s")
        .conf("shared_buffers", "8MB")
        .conf("max_wal_size", "64MB")
        .conf("max_prepared_transactions", "10")
        .conf("allow_in_place_tablespaces", "on");
    if major >= Major::V17 {
        builder = builder.conf("summarize_wal", "on");
    }
    builder.create()
}

fn adopt(major: Major, data: &Path, tracked: Option<&TrackedServer>) -> Adoption {
    // PostgreSQL 15 to 18 fail as hot standbys when a prepared transaction, and after it a change of the timeline, lie in
    // one WAL segment: they ask for that segment of the timeline that has ended ("has already been removed").
    let adoption = Cluster::adopt(major, data).conf("hot_standby", "off");
    match tracked {
        Some(server) => adoption.bindir(server.bindir()),
        None => adoption,
    }
}

/// Copies a directory with everything in it; links stay links.
pub(super) fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    let mut copy = Command::new("cp");
    let copied = copy.arg("-a").arg(from).arg(to).output();
    let copied = copied.context("could not start cp")?;
    ensure!(
        copied.status.success(),
        "could not copy \"{}\": {}",
        from.display(),
        String::from_utf8_lossy(&copied.stderr).trim()
    );
    Ok(())
}

/// Removes a directory with everything in it, if it is there.
pub(super) fn remove_tree(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    fs::remove_dir_all(path).with_context(|| format!("could not remove \"{}\"", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_history_names_the_places_at_which_timelines_were_left() {
        let text =
            "1\t0/3000060\tno recovery target specified\n\n2\t0/4FFFFD8\tbefore 2000-01-01\n";
        let places = history(text).unwrap();
        assert_eq!(places.len(), 2);
        assert_eq!(places[1].timeline, 2);
        assert_eq!(places[1].lsn, Lsn(0x4FF_FFD8));
    }
}
