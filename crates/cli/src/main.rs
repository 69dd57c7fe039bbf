//! pgstrata: block-level incremental backup for PostgreSQL.
fn main() {}
