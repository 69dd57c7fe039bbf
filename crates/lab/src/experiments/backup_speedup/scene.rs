//! One cluster, its two tables, and the backups taken of it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::contenders::contender::{Arena, Contender, empty_page_cache};
use crate::contenders::pgstrata::CLUSTER;
use crate::experiments::extension::Extension;
use crate::experiments::pages;
use crate::experiments::speed::workload::ANSWER_OF_TWO_TABLES;
use crate::experiments::stage::Stage;
use crate::experiments::strata;
use crate::experiments::tools::Tools;
use crate::format::{self, Unit};
use crate::interrupt;
use crate::measure::cost;
use crate::measure::environment::Environment;
use crate::measure::result::FOREIGN;
use crate::measure::session;
use crate::number::real_u64;
use pgstrata_testbed::cluster::{Cluster, require_same_dump};

/// What differs between scenes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Variant {
    pub(super) vacuumed: bool,
    pub(super) checksums: bool,
}

impl Variant {
    /// For people.
    pub(super) fn words(self) -> String {
        format!(
            "{}, checksums {}",
            if self.vacuumed {
                "frozen"
            } else {
                "never vacuumed"
            },
            if self.checksums { "on" } else { "off" }
        )
    }

    /// What ends the names of its values.
    pub(super) fn key(self) -> String {
        format!(
            ".{}.{}",
            if self.vacuumed {
                "frozen"
            } else {
                "unvacuumed"
            },
            if self.checksums { "checksums" } else { "plain" }
        )
    }
}

const TABLES: [&str; 2] = ["large_test", "large_test2"];

fn load(rows: u64, vacuumed: bool) -> Vec<String> {
    let mut statements: Vec<String> = TABLES
        .iter()
        .flat_map(|table| {
            [
                format!("CREATE TABLE {table} (num1 bigint, num2 double precision, num3 double precision)"),
                format!("INSERT INTO {table} SELECT s, random(), random()*142 FROM generate_series(1, {rows}) s"),
            ]
        })
        .collect();
    if vacuumed {
        statements.push("VACUUM (FREEZE, ANALYZE)".to_owned());
    }
    statements.push("CHECKPOINT".to_owned());
    statements
}

fn change(rows: u64) -> [String; 2] {
    [
        format!("UPDATE large_test2 SET num3 = num3 + 1 WHERE num1 < {rows} / 5"),
        "CHECKPOINT".to_owned(),
    ]
}

/// How the program is called for the repository of one change source.
fn repository(source: &str) -> String {
    let name = CLUSTER;
    format!("pgstrata --repo file://WORK/repository-pgstrata-{source} --cluster {name}")
}

/// Every statement and command, none executed.
pub(super) fn describe(
    variants: &[Variant],
    rows: u64,
    (sources, archives): (&[String], bool),
    blocks: usize,
) -> String {
    let wal = strata::wal_words(archives);
    let mut text = String::new();
    for variant in variants {
        text.push_str(&format!(
            "# {}\ninitdb {}\n",
            variant.words(),
            if variant.checksums {
                "--data-checksums"
            } else {
                "--no-data-checksums (18)"
            }
        ));
        for statement in load(rows, variant.vacuumed) {
            text.push_str(&format!("{statement};\n"));
        }
        for source in sources {
            let repo = repository(source);
            text.push_str(&format!(
                "{repo} init --pgdata DATA\n{repo} backup --pgdata DATA{wal} --type full\n"
            ));
            text.push_str(&format!(
                "cp -a WORK/repository-pgstrata-{source} WORK/parent-…\n"
            ));
        }
        for statement in change(rows) {
            text.push_str(&format!("{statement};\n"));
        }
        text.push_str(&format!("# {blocks} times, in random order, each from the parent's repository and with DATA read once before:\n"));
        for source in sources {
            let repo = repository(source);
            text.push_str(&format!("{repo} backup --pgdata DATA{wal} --type full\n"));
            text.push_str(&format!(
                "{repo} backup --pgdata DATA{wal} --type incr --change-source {source}\n"
            ));
        }
        text.push_str("# of each, one more increment:\n");
        for source in sources {
            let repo = repository(source);
            text.push_str(&format!("{repo} restore latest --target-type immediate --target-action promote --target-dir WORK/restored\npg_amcheck; pg_dumpall\n"));
        }
    }
    text.push_str("# pg_basebackup from PostgreSQL 17 on, and pgBackRest, WAL-G, pg_probackup where they are installed, the same way\n");
    text
}

/// A cluster with a changed table and everybody's parent backup.
pub(super) struct Scene<'a> {
    arena: Arena,
    variant: Variant,
    rows: u64,
    contenders: &'a [Box<dyn Contender + 'a>],
    changed: pages::Changed,
}

impl<'a> Scene<'a> {
    /// Makes it.
    pub(super) fn set(
        tools: &Tools,
        variant: Variant,
        rows: u64,
        extension: Option<&Extension>,
        contenders: &'a [Box<dyn Contender + 'a>],
    ) -> Result<Self> {
        let server = tools
            .server(extension)
            .checksums(variant.checksums)
            .conf("autovacuum", "off")
            .conf("max_wal_size", "8GB");
        let arena = tools.arena(server.start()?)?;
        let mut client = session::connect(&arena.cluster.conninfo("postgres"))?;
        if let Some(extension) = extension {
            session::run(&mut client, &extension.sql())?;
        }
        for statement in load(rows, variant.vacuumed) {
            session::run(&mut client, &statement)?;
        }
        let since = session::text(&mut client, "SELECT pg_current_wal_insert_lsn()::text")?;
        let scene = Self {
            arena,
            variant,
            rows,
            contenders,
            changed: pages::Changed::default(),
        };
        for contender in contenders {
            interrupt::check()?;
            scene.arena.start_over(contender.as_ref())?;
            cost::run(&mut contender.full(&scene.arena))?;
            scene.copy(
                &contender.repository(&scene.arena),
                &scene.parent(contender.as_ref()),
            )?;
        }
        for statement in change(rows) {
            session::run(&mut client, &statement)?;
        }
        let changed = pages::changed_since(scene.arena.cluster.pgdata(), pages::lsn(&since)?)?;
        Ok(Self { changed, ..scene })
    }

    fn parent(&self, contender: &dyn Contender) -> PathBuf {
        self.arena
            .work()
            .join(format!("parent-{}", contender.name().replace(' ', "-")))
    }

    fn copy(&self, from: &Path, to: &Path) -> Result<()> {
        // Whoever made the parent's has it there still.
        if to.exists() {
            self.arena.take_away(to)?;
        }
        crate::measure::programs::output(
            Command::new("cp")
                .args(["-a", "--reflink=auto"])
                .arg(from)
                .arg(to),
        )
        .with_context(|| format!("could not copy \"{}\"", from.display()))?;
        Ok(())
    }

    /// The scene's server, as it is found.
    pub(super) fn server(&self, stage: &mut Stage) -> Result<Environment> {
        let served = format!("{}, {}", strata::ALL_ARMS, self.variant.words());
        strata::capture(stage, &self.arena, &served)
    }

    /// All blocks, then a restore of one more increment of each tool.
    pub(super) fn measure(&self, stage: &mut Stage, cold: bool) -> Result<()> {
        strata::note_releases(stage, &self.arena, self.contenders);
        let acts = strata::acts(self.contenders);
        for (block, order) in stage.orders().into_iter().enumerate() {
            for (position, arm) in order.into_iter().enumerate() {
                interrupt::check()?;
                let (contender, full) = acts[arm];
                let values = self.one(self.contenders[contender].as_ref(), full, cold)?;
                let time = format::value(values["time"], Unit::Seconds);
                let stored = format::value(values["stored"], Unit::Bytes);
                stage.progress((block, arm), &format!("{time}, {stored} stored"));
                self.keep(stage, (block, position, arm), values)?;
                self.make_room(self.contenders[contender].as_ref())?;
            }
        }
        for (arm, (contender, full)) in acts.iter().enumerate() {
            if !full {
                interrupt::check()?;
                let contender = self.contenders[*contender].as_ref();
                // The last one measured may have been a full one, from the parent's repository.
                self.one(contender, false, cold)?;
                let found = self.restore(contender)?;
                self.keep(stage, (0, 0, arm), found)?;
                self.make_room(contender)?;
            }
        }
        Ok(())
    }

    /// Gives back what an act has left: the next one begins with the parent's repository. With 16 GB a disk has no room for
    /// everybody's at once.
    fn make_room(&self, contender: &dyn Contender) -> Result<()> {
        self.arena.take_away(&contender.repository(&self.arena))
    }

    /// One backup from the parent's repository, with warm caches or an empty page cache.
    fn one(
        &self,
        contender: &dyn Contender,
        full: bool,
        cold: bool,
    ) -> Result<BTreeMap<String, f64>> {
        self.arena.select(Some(contender))?;
        let repository = contender.repository(&self.arena);
        self.copy(&self.parent(contender), &repository)?;
        let mut command = if full {
            // pg_basebackup wants an empty place; the others keep both.
            if !contender.takes_another_full() {
                contender.reset(&self.arena)?;
            }
            contender.full(&self.arena)
        } else {
            contender.incremental(&self.arena, 1)
        };
        match cold {
            true => empty_page_cache()?,
            false => self.warm()?,
        }
        let mut values = strata::measured(&self.arena, contender, &mut command)?;
        if contender.tool() == "pgstrata" {
            let pages = strata::pages_of_newest(&repository)?;
            values.insert("backed_up".to_owned(), real_u64(pages));
        }
        Ok(values)
    }

    /// Everybody finds the data directory in the page cache, and nothing waiting to be written.
    fn warm(&self) -> Result<()> {
        let data = self.arena.cluster.pgdata().display().to_string();
        cost::run(&mut self.arena.shell(&format!(
            "find {data}/base {data}/global -type f -print0 | xargs -0 cat >/dev/null"
        )))?;
        rustix::fs::sync();
        Ok(())
    }

    /// Values of this scene go to the block's run of this arm, under names of the scene.
    fn keep(
        &self,
        stage: &mut Stage,
        place: (usize, usize, usize),
        mut values: BTreeMap<String, f64>,
    ) -> Result<()> {
        let key = self.variant.key();
        let foreign = values.remove(FOREIGN);
        let mut named: BTreeMap<String, f64> = values
            .into_iter()
            .map(|(name, value)| (format!("{name}{key}"), value))
            .collect();
        named.insert(format!("pages{key}"), real_u64(self.changed.pages));
        named.insert(format!("changed{key}"), real_u64(self.changed.changed));
        let run = stage.run(place);
        if run.values.is_empty() {
            run.seconds = named.get(&format!("time{key}")).copied().unwrap_or(0.0);
        }
        run.values.extend(named);
        if let Some(share) = foreign {
            run.note_foreign(share);
        }
        stage.save()
    }

    /// Restores, opens, compares with the source; how long until the first query was answered.
    fn restore(&self, contender: &dyn Contender) -> Result<BTreeMap<String, f64>> {
        self.arena.select(Some(contender))?;
        let target = self.arena.restore_target()?;
        let window = self.arena.window();
        let cost = cost::run(&mut contender.restore(&self.arena, 1, &target))?;
        // The restored server, which is opened next, is not known to be ours.
        let foreign = window.close().foreign;
        let began = Instant::now();
        let restored = self.arena.open(&target, &[])?;
        let opened = began.elapsed().as_secs_f64();
        restored.amcheck()?;
        let verified = began.elapsed().as_secs_f64();
        let sums = |cluster: &Cluster| cluster.sql("postgres", ANSWER_OF_TWO_TABLES);
        ensure!(
            sums(&restored)? == sums(&self.arena.cluster)?,
            "{}: the restored tables are not those of the source",
            contender.name()
        );
        // A dump of millions of rows says no more than their sums, and takes minutes.
        if self.rows <= 1_000_000 {
            require_same_dump(&self.arena.cluster.dump()?, &without_checks(&restored)?)?;
        }
        drop(restored);
        self.arena.take_away(&target)?;
        Ok(BTreeMap::from([
            (FOREIGN.to_owned(), foreign),
            ("restore".to_owned(), cost.wall_seconds),
            ("open".to_owned(), cost.wall_seconds + opened),
            ("verified".to_owned(), cost.wall_seconds + verified),
        ]))
    }
}

/// The check installs an extension in every database, which is not a difference.
fn without_checks(cluster: &Cluster) -> Result<String> {
    for database in cluster.databases()? {
        cluster.sql(&database, "DROP EXTENSION IF EXISTS amcheck")?;
    }
    cluster.dump()
}
