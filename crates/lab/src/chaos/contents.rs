//! The contents of a server: a hash of every table of every database, and what else a restore must bring back.

use std::collections::BTreeMap;

use anyhow::Result;
use pgstrata_testbed::cluster::{Cluster, SUPERUSER};

/// For each table, and for the catalogs of each database: rows and hash.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Contents(BTreeMap<String, String>);

/// Unlogged tables are empty after a crash and after a restore, so they say nothing.
const TABLES: &str = r"
SELECT format('SELECT %L, count(*) || '' rows '' || md5(coalesce(string_agg(h, '''' ORDER BY h), '''')) FROM (SELECT md5(t::text) AS h FROM %s t) AS hashed',
              current_database() || '.' || c.oid::regclass, c.oid::regclass)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'm') AND c.relpersistence = 'p' AND c.relispopulated
   AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
 ORDER BY 1
\gexec
SELECT current_database() || ' relations', count(*) || ' ' || md5(coalesce(string_agg(concat_ws(' ', c.relname, c.relkind, c.relpersistence, s.spcname), ',' ORDER BY c.relname), ''))
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace LEFT JOIN pg_tablespace s ON s.oid = c.reltablespace
 WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast');
SELECT current_database() || ' large objects', md5(coalesce(string_agg(loid || ' ' || pageno || ' ' || md5(data), ',' ORDER BY loid, pageno), '')) FROM pg_largeobject;
";

/// What belongs to no database.
const CLUSTER: &str = "
SELECT 'databases', string_agg(datname || ' in ' || spcname, ', ' ORDER BY datname) FROM pg_database d JOIN pg_tablespace s ON s.oid = d.dattablespace;
SELECT 'tablespaces', string_agg(spcname, ', ' ORDER BY spcname) FROM pg_tablespace;
SELECT 'roles', string_agg(rolname, ', ' ORDER BY rolname) FROM pg_roles WHERE rolname NOT LIKE 'pg\\_%';
SELECT 'prepared transactions', string_agg(gid || ' in ' || database, ', ' ORDER BY gid) FROM pg_prepared_xacts;
";

/// How many differences a finding shows.
const SHOWN: usize = 8;

impl Contents {
    /// Reads them. Nobody may write meanwhile.
    pub(super) fn of(server: &Cluster) -> Result<Self> {
        let mut contents = Self::default();
        contents.add(&server.sql(SUPERUSER, CLUSTER)?);
        for database in server.databases()? {
            contents.add(&server.sql(&database, TABLES)?);
        }
        Ok(contents)
    }

    fn add(&mut self, printed: &str) {
        let lines = printed.lines().filter_map(|line| line.split_once('|'));
        self.0
            .extend(lines.map(|(name, hash)| (name.to_owned(), hash.to_owned())));
    }

    /// How many tables and other things are compared.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// What differs in what was found; nothing when both are the same.
    pub(super) fn differences(&self, found: &Self) -> Vec<String> {
        let names = self.0.keys().chain(found.0.keys());
        let names: std::collections::BTreeSet<&String> = names.collect();
        let of = |contents: &Self, name| contents.0.get(name).cloned();
        let differing = names.into_iter().filter_map(|name| {
            let (wanted, there) = (of(self, name), of(found, name));
            let say = |value: Option<String>| value.unwrap_or_else(|| "nothing".to_owned());
            (wanted != there)
                .then(|| format!("{name}: expected {}, found {}", say(wanted), say(there)))
        });
        differing.take(SHOWN).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(text: &str) -> Contents {
        let mut contents = Contents::default();
        contents.add(text);
        contents
    }

    #[test]
    fn a_row_a_table_and_a_database_that_differ_are_named() {
        let truth = contents("db.t1|5 rows aa\ndb.t2|1 rows bb\ndatabases|db, postgres");
        assert!(truth.differences(&truth).is_empty());
        let other = contents("db.t1|4 rows cc\ndatabases|db, postgres\ndb.t3|0 rows dd");
        let differences = truth.differences(&other);
        assert_eq!(
            differences,
            [
                "db.t1: expected 5 rows aa, found 4 rows cc",
                "db.t2: expected 1 rows bb, found nothing",
                "db.t3: expected nothing, found 0 rows dd"
            ]
        );
    }
}
