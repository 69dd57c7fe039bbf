//! A server and the place on it where an experiment may work.

use std::rc::Rc;

use anyhow::{Context, Result, bail};
use postgres::Client;

use super::Names;
use crate::experiments::shared::Usage;
use crate::measure::arm::ArmSpec;
use crate::measure::environment::{self, Environment};
use crate::measure::server::{Place, Template};
use crate::measure::session;

/// Begins the name of everything the experiment makes.
const PREFIX: &str = "pgstrata_lab_";

/// The columns of `pg_settings` that are the same since PostgreSQL 9.5.
const COLUMNS: &str = "name text, setting text, unit text, category text, short_desc text, extra_desc text, \
    context text, vartype text, source text, min_val text, max_val text, enumvals text[], boot_val text, \
    reset_val text, sourcefile text, sourceline integer, pending_restart boolean";

/// Stands for the tag of objects where it is not known yet.
pub(super) const TAG: &str = "TAG";

/// The names of objects; the tag tells those of two grounds apart, which may be on one server.
pub(super) fn names(schema: Option<&str>, tag: &str, frozen: bool) -> Names {
    let (home, stem) = match schema {
        Some(schema) => (schema.to_owned(), format!("{PREFIX}{tag}_")),
        None => (format!("{PREFIX}{tag}"), String::new()),
    };
    Names {
        table: format!("{home}.{stem}settings_loop"),
        index: format!("{stem}by_name"),
        source: if frozen {
            format!("{home}.{stem}settings")
        } else {
            "pg_settings".to_owned()
        },
    }
}

/// What happens once, before the first run.
pub(super) fn preparation(schema: Option<&str>, tag: &str) -> Vec<String> {
    let mut statements = vec!["SET track_io_timing = on".to_owned()];
    if schema.is_none() {
        statements.push(format!("CREATE SCHEMA {PREFIX}{tag}"));
    }
    statements
}

/// What happens before every run.
pub(super) fn before_run(names: &Names) -> Vec<String> {
    vec![
        format!("DROP TABLE IF EXISTS {}", names.table),
        "CHECKPOINT".to_owned(),
    ]
}

/// What happens at the end.
pub(super) fn removal(schema: Option<&str>, tag: &str) -> Vec<String> {
    if schema.is_none() {
        return vec![format!("DROP SCHEMA {PREFIX}{tag} CASCADE")];
    }
    let names = names(schema, tag, true);
    vec![
        format!("DROP TABLE IF EXISTS {}", names.table),
        format!("DROP TABLE IF EXISTS {}", names.source),
    ]
}

/// A connected server.
pub(super) struct Ground {
    client: Client,
    dsn: String,
    schema: Option<String>,
    /// Not the process: in containers that is often the same.
    tag: String,
    names: Names,
    io_timing: bool,
    /// Whether objects may be left there.
    dirty: bool,
    place: Place,
}

impl Ground {
    /// Connects, starting a cluster where the arm is the lab's own, and finds
    /// where tables may be made.
    pub(super) fn open(spec: &ArmSpec, schema: Option<&str>) -> Result<Self> {
        let mut place = match &spec.dsn {
            Some(dsn) => Place::Remote { dsn: dsn.clone() },
            None => Place::Own {
                template: Rc::new(Template::create(spec, |_, _| Ok(()))?),
                copy: "run".to_owned(),
                data: None,
                running: None,
            },
        };
        let dsn = place.ready(spec, true)?;
        let mut client = session::connect(&dsn)?;
        let io_timing = session::run(&mut client, "SET track_io_timing = on").is_ok();
        let tag = format!("{:08x}", rand::random::<u32>());
        let schema = match schema {
            Some(schema) => Some(schema.to_owned()),
            None => home(&mut client)?,
        };
        let mut ground = Self {
            names: names(schema.as_deref(), &tag, false),
            client,
            dsn,
            schema,
            tag,
            io_timing,
            dirty: false,
            place,
        };
        if ground.schema.is_none() {
            let create = format!("CREATE SCHEMA {PREFIX}{}", ground.tag);
            session::run(&mut ground.client, &create)?;
        }
        ground.dirty = true;
        Ok(ground)
    }

    pub(super) fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// The server's process, if it is on this machine and the lab's own.
    pub(super) fn postmaster(&self) -> Option<u32> {
        self.place.postmaster()
    }

    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    pub(super) fn io_timing(&self) -> bool {
        self.io_timing
    }

    /// Makes a table of settings: of this server's, or of the rows given.
    /// Returns the rows as `COPY` writes them.
    pub(super) fn make_source(&mut self, rows: Option<&[u8]>) -> Result<Vec<u8>> {
        use std::io::{Read, Write};
        self.names = names(self.schema.as_deref(), &self.tag, true);
        let source = self.names.source.clone();
        let wrong = || format!("could not copy settings into \"{source}\"");
        session::run(
            &mut self.client,
            &format!("CREATE TABLE {source} ({COLUMNS})"),
        )?;
        let Some(rows) = rows else {
            let columns: Vec<&str> = COLUMNS
                .split(", ")
                .filter_map(|column| column.trim().split(' ').next())
                .collect();
            let fill = format!(
                "INSERT INTO {source} SELECT {} FROM pg_settings",
                columns.join(", ")
            );
            session::run(&mut self.client, &fill)?;
            let mut rows = Vec::new();
            let mut reader = self
                .client
                .copy_out(&format!("COPY {source} TO STDOUT"))
                .with_context(wrong)?;
            reader.read_to_end(&mut rows).with_context(wrong)?;
            return Ok(rows);
        };
        let mut writer = self
            .client
            .copy_in(&format!("COPY {source} FROM STDIN"))
            .with_context(wrong)?;
        writer.write_all(rows).with_context(wrong)?;
        writer.finish().with_context(wrong)?;
        Ok(Vec::new())
    }

    /// The same state before every run, as far as the role may bring it about.
    pub(super) fn prepare_run(&mut self) -> Result<()> {
        let drop = format!("DROP TABLE IF EXISTS {}", self.names.table);
        session::run(&mut self.client, &drop)?;
        // Only some roles may; the others begin with whatever is dirty.
        let _ = session::run(&mut self.client, "CHECKPOINT");
        rustix::fs::sync();
        Ok(())
    }

    /// What there is to know about the server, and about the machine if it is ours.
    pub(super) fn environment(&mut self) -> Environment {
        environment::of_server(&mut self.client, self.place.data())
    }

    /// Removes what the experiment made, by a connection of its own: the
    /// experiment's may have been cancelled.
    pub(super) fn clean(&mut self, keep: bool) -> Result<()> {
        self.dirty = false;
        if keep {
            return Ok(());
        }
        let mut client = session::undisturbed(&self.dsn)?;
        for statement in removal(self.schema.as_deref(), &self.tag) {
            session::run(&mut client, &statement)?;
        }
        Ok(())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if self.dirty {
            // Whoever fails has said why; what is left names itself.
            let _ = self.clean(false);
        }
    }
}

/// An existing schema to use, or none when the role may make one.
fn home(client: &mut Client) -> Result<Option<String>> {
    let may = "SELECT has_database_privilege(current_database(), 'CREATE')::text";
    if session::text(client, may)? == "true" {
        return Ok(None);
    }
    let rows = client
        .query(
            "SELECT quote_ident(nspname) FROM pg_namespace \
              WHERE has_schema_privilege(oid, 'CREATE') AND has_schema_privilege(oid, 'USAGE') \
                AND nspname !~ '^pg_' \
              ORDER BY nspname = 'public' DESC, nspname LIMIT 1",
            &[],
        )
        .context("could not look for a schema to work in")?;
    if let Some(row) = rows.first() {
        return Ok(Some(row.get(0)));
    }
    let who = session::text(client, "SELECT quote_ident(current_user)")?;
    let database = session::text(client, "SELECT quote_ident(current_database())")?;
    bail!(Usage(format!(
        "could not find a place for tables: role {who} has privilege CREATE neither on database {database} nor on a schema in it"
    )))
}
