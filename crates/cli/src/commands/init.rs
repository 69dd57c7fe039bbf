//! `init`.

use std::io::{self, BufRead, IsTerminal};

use pgstrata_layer::cluster::{ClusterRecord, LockMode, RetentionRecord};
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::keys::{Recipients, doubled_warning, keep_out_of_dumps};
use serde_json::json;

use super::Context;
use crate::args::{InitArgs, RetainMode};

pub(super) async fn run(context: &Context, args: &InitArgs) -> Result<u8> {
    let recipients = recipients(args)?;
    let retention = args.retain.map(|days| RetentionRecord {
        version: 1,
        mode: match args.retain_mode {
            RetainMode::Compliance => LockMode::Compliance,
            RetainMode::Governance => LockMode::Governance,
        },
        days,
    });
    let cluster = context.cluster()?;
    let directory = context.data_directory(&args.server)?;
    let report =
        pgstrata_engine::init::init(&cluster, &directory, recipients.as_ref(), retention).await?;
    let record = &report.record;
    let document = json!({ "created": report.created, "repository": cluster.repository.url(), "cluster": record });
    context.report("init/1", &document, || {
        let what = if report.created { "created" } else { "already there, unchanged" };
        format!(
            "cluster \"{}\" in {}: {what}\nPostgreSQL {}, system identifier {}, WAL segments of {} MiB\n{}{}",
            record.name,
            cluster.repository.url(),
            record.major,
            record.system_identifier,
            record.wal_segment_size >> 20,
            of_sealing(record),
            of_retention(record),
        )
    })?;
    Ok(0)
}

fn of_retention(record: &ClusterRecord) -> String {
    let Some(retention) = &record.retention else {
        return String::new();
    };
    let who = match retention.mode {
        LockMode::Compliance => "nobody can lift the locks",
        LockMode::Governance => "who has a right of its own can lift the locks",
    };
    format!(
        "locked: every layer for {} days after it was made, with all it stands on; {who}\n",
        retention.days
    )
}

fn of_sealing(record: &ClusterRecord) -> String {
    let Some(sealing) = &record.sealing else {
        return String::new();
    };
    format!(
        "sealed, seal id {}: write seal-id into the configuration of every host, so that none takes another cluster for this one\n\
         who loses the identities of all readers loses every backup: keep each in another place, and try them with \"pgstrata key check\"\n",
        sealing.seal_id
    )
}

/// Who shall open what; nothing when the cluster is not to be sealed.
fn recipients(args: &InitArgs) -> Result<Option<Recipients>> {
    let recipients = args.recipients.recipients()?;
    if !args.encrypt {
        return match recipients.all.is_empty() {
            true => Ok(None),
            false => Err(Error::new(
                Kind::Usage,
                "recipients are given for a cluster that is not sealed",
            )
            .hint("add --encrypt, or leave them out")),
        };
    }
    recipients.check()?;
    // The identity of the first epoch is made here.
    keep_out_of_dumps();
    if recipients.readers().count() == 1 && !args.one_recipient && !is_agreed() {
        return Err(Error::new(
            Kind::Usage,
            "one recipient alone could read the backups: who loses that identity loses them all",
        )
        .hint("give a second --recipient, whose identity is kept elsewhere, or --one-recipient"));
    }
    for recipient in recipients.doubled() {
        let (what, to_do) = doubled_warning(recipient);
        tracing::warn!("{what}; {to_do}");
    }
    Ok(Some(recipients))
}

/// Asks, when somebody is there to answer.
fn is_agreed() -> bool {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return false;
    }
    tracing::warn!(
        "one recipient alone could read the backups: who loses that identity loses them all"
    );
    tracing::warn!("write \"yes\" to go on");
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.is_ok() && answer.trim() == "yes"
}
