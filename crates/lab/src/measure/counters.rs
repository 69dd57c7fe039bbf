//! The server's own counters, by whatever names its version has.

use std::collections::BTreeMap;

use postgres::Client;

/// One-row views, prefixed by their name: `pg_stat_wal.wal_bytes`.
const VIEWS: [&str; 4] = [
    "SELECT 'pg_stat_wal', to_jsonb(s) FROM pg_stat_wal s",
    "SELECT 'pg_stat_bgwriter', to_jsonb(s) FROM pg_stat_bgwriter s",
    "SELECT 'pg_stat_checkpointer', to_jsonb(s) FROM pg_stat_checkpointer s",
    "SELECT 'pg_stat_database', to_jsonb(s) FROM pg_stat_database s WHERE datname = current_database()",
];

/// `pg_stat_io` summed over backends and objects: `pg_stat_io.bulkwrite.writes`.
const IO: &str = "SELECT 'pg_stat_io.' || context, jsonb_object_agg(key, total) FROM ( \
     SELECT context, key, sum(value::numeric) AS total \
       FROM pg_stat_io i, jsonb_each_text(to_jsonb(i)) \
      WHERE key NOT IN ('backend_type', 'object', 'context', 'stats_reset') AND value IS NOT NULL \
      GROUP BY 1, 2) s GROUP BY 1";

/// Reads all counters; views that a version lacks are absent.
#[must_use]
pub fn read(client: &mut Client) -> BTreeMap<String, f64> {
    let mut counters = BTreeMap::new();
    for query in VIEWS.iter().chain([&IO]) {
        // An unknown view is an older or newer server, not an error.
        let wrapped = format!(
            "SELECT view || '.' || e.key, e.value FROM ({query}) AS v(view, document), \
             jsonb_each_text(v.document) AS e"
        );
        let Ok(rows) = client.query(&wrapped, &[]) else {
            continue;
        };
        for row in rows {
            let (name, value): (String, Option<String>) = (row.get(0), row.get(1));
            if let Some(number) = value.and_then(|v| v.parse::<f64>().ok()) {
                counters.insert(name, number);
            }
        }
    }
    counters
}

/// What grew between two readings.
#[must_use]
pub fn growth(
    before: &BTreeMap<String, f64>,
    after: &BTreeMap<String, f64>,
) -> BTreeMap<String, f64> {
    after
        .iter()
        .map(|(name, value)| (name.clone(), value - before.get(name).unwrap_or(&0.0)))
        .collect()
}

/// Checkpoints in a growth, under the names of all versions.
#[must_use]
pub fn checkpoints(growth: &BTreeMap<String, f64>) -> f64 {
    [
        "pg_stat_bgwriter.checkpoints_timed",
        "pg_stat_bgwriter.checkpoints_req",
        "pg_stat_checkpointer.num_timed",
        "pg_stat_checkpointer.num_requested",
    ]
    .iter()
    .filter_map(|name| growth.get(*name))
    .sum()
}
