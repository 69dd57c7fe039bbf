//! `init`.

use pgstrata_store::error::Result;
use serde_json::json;

use super::Context;
use crate::args::InitArgs;

pub(super) async fn run(context: &Context, args: &InitArgs) -> Result<u8> {
    let cluster = context.cluster()?;
    let directory = context.data_directory(&args.server)?;
    let report = pgstrata_engine::init::init(&cluster, &directory).await?;
    let record = &report.record;
    let document = json!({ "created": report.created, "repository": cluster.repository.url(), "cluster": record });
    context.report("init/1", &document, || {
        let what = if report.created { "created" } else { "already there, unchanged" };
        format!(
            "cluster \"{}\" in {}: {what}\nPostgreSQL {}, system identifier {}, WAL segments of {} MiB\n",
            record.name,
            cluster.repository.url(),
            record.major,
            record.system_identifier,
            record.wal_segment_size >> 20,
        )
    })?;
    Ok(0)
}
