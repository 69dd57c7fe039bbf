//! Looking whether a cluster is what it should be.

use anyhow::{Result, bail, ensure};

use super::{Cluster, SUPERUSER};

/// Every table's all-visible and all-frozen bits that are not true.
const WRONG_VISIBILITY: &str = "
    CREATE EXTENSION IF NOT EXISTS pg_visibility;
    SELECT c.oid::regclass, 'visible', t_ctid
      FROM pg_class c, LATERAL pg_check_visible(c.oid)
     WHERE relkind IN ('r', 'm', 't') AND relpersistence <> 't'
     UNION ALL
    SELECT c.oid::regclass, 'frozen', t_ctid
      FROM pg_class c, LATERAL pg_check_frozen(c.oid)
     WHERE relkind IN ('r', 'm', 't') AND relpersistence <> 't'";

/// Looks for twenty values of each index that is no B-tree, by it alone and without any index.
const SEARCH_INDEXES: &str = r"
    BEGIN;
    CREATE FUNCTION pg_temp.use_indexes(wanted bool) RETURNS void LANGUAGE sql AS $$
        SELECT set_config(name, CASE WHEN wanted = (name ~ 'index|bitmap') THEN 'on' ELSE 'off' END, true)
          FROM pg_settings WHERE name ~ '^enable_(seqscan|indexscan|indexonlyscan|bitmapscan|hashjoin|mergejoin)$'
    $$;
    DO $$
    DECLARE
        searched record;
        query text;
        found bigint;
        there bigint;
    BEGIN
        FOR searched IN
            SELECT i.indexrelid, i.indrelid, pg_get_indexdef(i.indexrelid, 1, false) AS key,
                   CASE am.amname WHEN 'gin' THEN '@@ quote_literal((tsvector_to_array(value))[1])::tsquery' ELSE '= value' END AS sought
              FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am am ON am.oid = c.relam
             WHERE am.amname IN ('hash', 'brin', 'gin', 'spgist') AND i.indisvalid
        LOOP
            UPDATE pg_index SET indisvalid = indexrelid = searched.indexrelid WHERE indrelid = searched.indrelid;
            PERFORM pg_temp.use_indexes(false);
            EXECUTE format('CREATE TEMPORARY TABLE sample AS SELECT * FROM (SELECT DISTINCT %s AS value FROM %s) v WHERE value IS NOT NULL ORDER BY md5(value::text) LIMIT 20',
                           searched.key, searched.indrelid::regclass);
            query := format('SELECT count(*) FROM sample, %s WHERE %s %s', searched.indrelid::regclass, searched.key, searched.sought);
            EXECUTE query INTO there;
            PERFORM pg_temp.use_indexes(true);
            EXECUTE query INTO found;
            IF found <> there THEN
                RAISE EXCEPTION 'index % finds % rows, its table has %', searched.indexrelid::regclass, found, there;
            END IF;
            DROP TABLE sample;
        END LOOP;
    END $$;
    ROLLBACK";

impl Cluster {
    /// Everything in the cluster as SQL, without tablespaces (their paths differ
    /// between copies) and without the rows of unlogged tables (a crash empties
    /// them). Equal clusters give equal text.
    pub fn dump(&self) -> Result<String> {
        let arguments = ["--no-tablespaces", "--no-unlogged-table-data"];
        let text = self.run("pg_dumpall", &arguments)?;
        // A random key against injection, different in every dump.
        let lines = text
            .lines()
            .filter(|line| !line.starts_with(r"\restrict ") && !line.starts_with(r"\unrestrict "));
        Ok(lines.collect::<Vec<_>>().join("\n"))
    }

    /// The databases that accept connections.
    pub fn databases(&self) -> Result<Vec<String>> {
        let query = "SELECT datname FROM pg_database WHERE datallowconn ORDER BY 1";
        let names = self.sql(SUPERUSER, query)?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    /// Checks every table and index of every database with `pg_amcheck`, each
    /// heap tuple against its indexes.
    pub fn amcheck(&self) -> Result<()> {
        let arguments = [
            "--all",
            "--install-missing",
            "--heapallindexed",
            "--parent-check",
        ];
        self.run("pg_amcheck", &arguments).map(drop)
    }

    /// Checks indexes of which `pg_amcheck` knows nothing (hash, GIN of text, BRIN, SP-GiST) against their tables.
    pub fn search_indexes(&self) -> Result<()> {
        for database in self.databases()? {
            self.sql(&database, SEARCH_INDEXES)?;
        }
        Ok(())
    }

    /// Checks every visibility map of every database against its table.
    pub fn check_visibility_maps(&self) -> Result<()> {
        for database in self.databases()? {
            let wrong = self.sql(&database, WRONG_VISIBILITY)?;
            ensure!(
                wrong.is_empty(),
                "visibility maps in database \"{database}\" are wrong: {wrong}"
            );
        }
        Ok(())
    }
}

/// Fails with the first line in which two dumps differ.
pub fn require_same_dump(left: &str, right: &str) -> Result<()> {
    let mut lines = left.lines().zip(right.lines()).enumerate();
    if let Some((index, (one, other))) = lines.find(|(_, (one, other))| one != other) {
        bail!("dumps differ in line {}: {one:?} and {other:?}", index + 1);
    }
    let (left_count, right_count) = (left.lines().count(), right.lines().count());
    ensure!(
        left_count == right_count,
        "one dump has {left_count} lines, the other {right_count}, and the shorter is the beginning of the longer"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shorter_dump_is_not_the_same() {
        assert!(require_same_dump("a\nb", "a\nb").is_ok());
        assert!(require_same_dump("a\nb", "a").is_err());
        let error = require_same_dump("a\nb\nc", "a\nx\nc").unwrap_err();
        assert_eq!(error.to_string(), r#"dumps differ in line 2: "b" and "x""#);
    }
}
