//! Data, and how it changes.

use anyhow::Result;
use pgstrata_testbed::cluster::Cluster;

/// Data, and how it changes.
#[derive(Clone, Copy, Debug)]
pub enum Workload {
    /// W1: two tables of `rows` rows; a fifth of one is updated; one increment.
    TwoTables {
        /// Rows of each table; 52 bytes each on disk.
        rows: u64,
        /// Rows of a third table that nothing ever changes; 1024 bytes each on disk.
        neighbour_rows: u64,
    },
    /// W2: pgbench; five increments, each after `transactions` transactions.
    Pgbench {
        /// Scale factor: 15 MB each.
        scale: u32,
        /// TPC-B-like transactions before each increment.
        transactions: u32,
    },
}

impl Workload {
    pub(super) fn two_tables(mb: u64, neighbour_mb: u64) -> Self {
        Self::TwoTables {
            // 157 rows of 52 bytes fill a page of 8192.
            rows: mb * 1_000_000 / 2 / 8192 * 157,
            // 8 of them fill one.
            neighbour_rows: neighbour_mb * 1_000_000 / 8192 * 8,
        }
    }

    pub(super) fn pgbench(scale: u32) -> Self {
        Self::Pgbench {
            scale,
            transactions: scale * 200,
        }
    }

    /// Its name in tables.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::TwoTables { .. } => "W1",
            Self::Pgbench { .. } => "W2",
        }
    }

    pub(super) fn words(self) -> String {
        match self {
            Self::TwoTables {
                rows,
                neighbour_rows: 0,
            } => format!("two tables of {rows} rows"),
            Self::TwoTables {
                rows,
                neighbour_rows,
            } => format!("two tables of {rows} rows beside one of {neighbour_rows}"),
            Self::Pgbench { scale, .. } => format!("pgbench scale {scale}"),
        }
    }

    pub(super) fn increments(self) -> usize {
        match self {
            Self::TwoTables { .. } => 1,
            Self::Pgbench { .. } => 5,
        }
    }

    /// Makes the data; every page then has its hint bits, as in a database that has been used.
    pub(super) fn load(self, cluster: &Cluster) -> Result<()> {
        match self {
            Self::TwoTables {
                rows,
                neighbour_rows,
            } => {
                if neighbour_rows > 0 {
                    cluster.sql("postgres", &format!(
                        "CREATE TABLE neighbour AS
                         SELECT s, repeat(md5(s::text), 30) AS pad FROM generate_series(1, {neighbour_rows}) s"))?;
                }
                for table in ["large_test", "large_test2"] {
                    cluster.sql("postgres", &format!(
                        "CREATE TABLE {table} (num1 bigint, num2 double precision, num3 double precision);
                         INSERT INTO {table} SELECT s, random(), random() * 142 FROM generate_series(1, {rows}) s"))?;
                }
            }
            Self::Pgbench { scale, .. } => {
                cluster.pgbench(&["-i", "-q", "-s", &scale.to_string()])?;
            }
        }
        Self::tidy(cluster)
    }

    /// Every page has its hint bits, as in a database that has been used.
    pub(super) fn tidy(cluster: &Cluster) -> Result<()> {
        cluster
            .sql("postgres", "VACUUM (FREEZE, ANALYZE)")
            .map(drop)
    }

    pub(super) fn change_words(self) -> String {
        match self {
            Self::TwoTables { rows, .. } => format!(
                "UPDATE large_test2 SET num3 = num3 + 1 WHERE num1 < {}",
                rows / 5
            ),
            Self::Pgbench { transactions, .. } => format!("pgbench -n -c2 -t {}", transactions / 2),
        }
    }

    pub(super) fn change(self, cluster: &Cluster) -> Result<()> {
        let words = self.change_words();
        match self {
            Self::TwoTables { .. } => cluster.sql("postgres", &words),
            Self::Pgbench { .. } => {
                let options: Vec<&str> = words.split(' ').skip(1).collect();
                cluster.pgbench(&options)
            }
        }
        .map(drop)
    }

    pub(super) fn answer(self, cluster: &Cluster) -> Result<String> {
        cluster.sql(
            "postgres",
            match self {
                Self::TwoTables { .. } => ANSWER_OF_TWO_TABLES,
                Self::Pgbench { .. } => ANSWER_OF_PGBENCH,
            },
        )
    }
}

/// What the two tables of W1 hold. In an order of its own: a parallel append returns first what is done first.
pub const ANSWER_OF_TWO_TABLES: &str =
    "SELECT 'large_test', count(*), sum(num3::numeric) FROM large_test
    UNION ALL SELECT 'large_test2', count(*), sum(num3::numeric) FROM large_test2 ORDER BY 1";

/// What pgbench has changed, likewise.
pub const ANSWER_OF_PGBENCH: &str =
    "SELECT 'accounts', count(*), sum(abalance) FROM pgbench_accounts
    UNION ALL SELECT 'history', count(*), sum(delta) FROM pgbench_history ORDER BY 1";
