//! `key`.

use std::collections::BTreeSet;
use std::fmt::Write;

use pgstrata_layer::epoch::KeyRole;
use pgstrata_layer::plain::plain;
use pgstrata_store::catalog::Catalog;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::error::{Error, Kind, Result};
use pgstrata_store::keys::{self, Admission, EpochSeen, KeySummary, Recipients, Ring};
use serde_json::{Value, json};

use super::{Context, known_cluster};
use crate::args::{KeyCommand, RecipientArgs};
use crate::exit;
use crate::identity;

pub(super) async fn run(context: &Context, command: &KeyCommand) -> Result<u8> {
    if let KeyCommand::Generate { file } = command {
        let recipient = identity::generate(file)?;
        let document = json!({ "done": "generate", "recipient": recipient, "epochs": [] });
        context.report("key/1", &document, || format!("{recipient}\n"))?;
        return Ok(0);
    }
    let cluster = known_cluster(context).await?;
    let ring = ring(&cluster).await?;
    let is_check = matches!(command, KeyCommand::Check);
    let (epochs, forged) = match is_check {
        true => ring.survey_all(cluster.home()).await?,
        // Who has a box has to be known to say who comes next.
        false => (ring.survey(cluster.home()).await?, Vec::new()),
    };
    // What is sealed shows its epoch. Who opens nothing of it sees what names show.
    let shown = Catalog::load(&cluster).await;
    if let Err(error) = shown.map(|_| ()) {
        tracing::debug!(%error, "the catalog does not show which epochs there are");
    }
    if !is_check && let Err(error) = cluster.require_newest_epoch().await {
        match (command, error.is_lost_epoch(), error.kind()) {
            // Whoever changes keys sees one that has just begun.
            (_, _, Kind::Refused) => {}
            (KeyCommand::Rotate, true, _) => {
                let epoch = ring.current().number;
                tracing::warn!(
                    "{error}; the new epoch gets a higher number, and is for the recipients of epoch {epoch}: take out again who was taken out since, with \"key remove\""
                );
            }
            _ => return Err(error),
        }
    }
    match command {
        KeyCommand::Generate { .. } | KeyCommand::Check => {
            let lost = ring.lost(cluster.home()).await?;
            let lost = lost.last().map(|number| ring.not_there(*number));
            check(context, &epochs, lost.into_iter().chain(forged).collect())
        }
        KeyCommand::Add(args) => add(context, &cluster, (ring, &epochs), args).await,
        KeyCommand::Reseal { recipient } => {
            let recipient = &keys::recipient(recipient)?;
            let admission = keys::reseal(cluster.home(), ring, recipient).await?;
            let text = resealed(recipient, &admission, epochs.len());
            done(context, "reseal", recipient, &text)
        }
        KeyCommand::Rotate => {
            let text = rotate(&cluster, ring, &epochs, None).await?;
            done(context, "rotate", "", &text)
        }
        KeyCommand::Remove { recipient } => {
            let recipient = &keys::recipient(recipient)?;
            let mut text = rotate(&cluster, ring, &epochs, Some(recipient)).await?;
            let _ = writeln!(
                text,
                "{recipient} still opens what was sealed before: take a full backup, and expire the older layers"
            );
            done(context, "remove", recipient, &text)
        }
    }
}

async fn ring(cluster: &ClusterRepository) -> Result<&Ring> {
    let sealing = cluster.sealing().await?;
    sealing.ring().map(AsRef::as_ref).ok_or_else(|| {
        let what = format!("cluster \"{}\" is not sealed, so it has no keys", cluster.name.as_str());
        Error::new(Kind::Refused, what)
            .hint("a cluster is sealed from its first object on: \"pgstrata init --encrypt\" with another --cluster")
    })
}

fn done(context: &Context, what: &str, recipient: &str, text: &str) -> Result<u8> {
    let document = json!({ "done": what, "recipient": recipient, "epochs": [] });
    context.report("key/1", &document, || text.to_owned())?;
    Ok(0)
}

async fn add(
    context: &Context,
    cluster: &ClusterRepository,
    (ring, epochs): (&Ring, &[EpochSeen]),
    args: &RecipientArgs,
) -> Result<u8> {
    let recipients = args.recipients()?;
    if recipients.all.is_empty() {
        return Err(
            Error::new(Kind::Usage, "nobody was named who is to be let in")
                .hint("give --recipient, --writer or --keeper, each with an age recipient"),
        );
    }
    let mut text = String::new();
    for (role, recipient) in &recipients.all {
        let admission = keys::add(cluster.home(), ring, *role, recipient).await?;
        let epoch = ring.current().number;
        let _ = writeln!(
            text,
            "{recipient} is a {} from epoch {epoch} on",
            role.as_str()
        );
        text.push_str(&meanwhile(ring, admission.current));
        if !admission.closed.is_empty() {
            tracing::warn!(
                "{recipient} does not open the catalog of {}, which nobody at hand opens: as long as a layer of then is there, commands \
                 that read the catalog refuse that identity. Who opens it lets the recipient in with the same command",
                named(&admission.closed)
            );
        }
        let before = epochs.iter().filter(|seen| seen.number < epoch);
        if *role == KeyRole::Reader && before.clone().any(|seen| seen.opens_data) {
            let _ = writeln!(
                text,
                "what was sealed before: \"pgstrata key reseal {recipient}\""
            );
        }
        let closed = before.filter(|seen| !seen.opens_data);
        let closed: Vec<u32> = closed.map(|seen| seen.number).collect();
        if *role == KeyRole::Reader && !closed.is_empty() {
            tracing::warn!("{recipient} {}", reads_no_page(&closed));
        }
    }
    done(context, "add", "", &text)
}

/// What came of letting a reader into all of so many epochs.
fn resealed(recipient: &str, admission: &Admission, count: usize) -> String {
    if admission.closed.is_empty() {
        return format!(
            "{recipient} was let into {} epochs, and reads all {count} now\n",
            admission.older
        );
    }
    tracing::warn!("{recipient} {}", reads_no_page(&admission.closed));
    format!("{recipient} was let into {} epochs\n", admission.older)
}

/// What is said of who cannot be let in by the identities at hand.
fn reads_no_page(closed: &[u32]) -> String {
    format!(
        "reads no page and no WAL that was sealed in {}: the identity at hand does not, either. A reader of then, also one who was \
         taken out since, lets him in with \"pgstrata key reseal\"",
        named(closed)
    )
}

/// Epochs by their numbers.
fn named(epochs: &[u32]) -> String {
    let numbers: Vec<String> = epochs.iter().map(ToString::to_string).collect();
    let word = match epochs.len() {
        1 => "epoch",
        _ => "epochs",
    };
    format!("{word} {}", numbers.join(", "))
}

/// The epochs of which nobody of `recipients` reads a page, who read what comes.
fn left_behind(epochs: &[EpochSeen], recipients: &Recipients) -> Vec<u32> {
    let reads = |seen: &EpochSeen| {
        let mut boxes = seen.boxes.iter();
        boxes.any(|own| {
            let recipient = own.recipient.to_ascii_lowercase();
            own.role == KeyRole::Reader && recipients.readers().any(|one| one == recipient)
        })
    };
    let left = epochs.iter().filter(|seen| !reads(seen));
    left.map(|seen| seen.number).collect()
}

/// What is to be said when epochs have begun since `ring` was read.
fn meanwhile(ring: &Ring, current: u32) -> String {
    match current > ring.current().number {
        true => format!("epoch {current} began meanwhile, and the recipient opens it too\n"),
        false => String::new(),
    }
}

async fn rotate(
    cluster: &ClusterRepository,
    ring: &Ring,
    epochs: &[EpochSeen],
    but: Option<&String>,
) -> Result<String> {
    let current = epochs.last().map(|epoch| epoch.boxes.as_slice());
    let boxes = current.unwrap_or_default().iter();
    // Of a box in capitals, which nobody opens, the next epoch has one that its recipient opens.
    let boxes = boxes.map(|own| (own.role, own.recipient.to_ascii_lowercase()));
    let all: BTreeSet<(KeyRole, String)> = boxes.collect();
    let before = all.len();
    let kept = all.into_iter().filter(|(_, own)| but != Some(own));
    let recipients = Recipients {
        all: kept.collect(),
    };
    if let Some(but) = but.filter(|_| recipients.all.len() == before) {
        let what = format!("{but} opens nothing of the current epoch");
        return Err(Error::new(Kind::NotFound, what).hint("\"pgstrata key check\" lists who does"));
    }
    let number = keys::rotate(cluster.home(), ring, &recipients).await?;
    let left = left_behind(epochs, &recipients);
    if !left.is_empty() {
        tracing::warn!(
            "no reader of epoch {number} reads what was sealed in {}: as long as an identity is there that does, let a reader in \
             with it and \"pgstrata key reseal age1...\"; without one those backups are lost",
            named(&left)
        );
    }
    Ok(format!(
        "epoch {number} has begun: what is sealed from now on is opened by {} recipients\n",
        recipients.all.len()
    ))
}

fn check(context: &Context, epochs: &[EpochSeen], mut errors: Vec<Error>) -> Result<u8> {
    let summary = KeySummary::of(epochs);
    errors.extend(summary.unread_error());
    let document = json!({ "done": "check", "recipient": "", "epochs": epochs.iter().map(document).collect::<Vec<_>>() });
    context.report("key/1", &document, || text(epochs, &summary, &errors))?;
    if !errors.is_empty() {
        return Ok(exit::code(Kind::Damaged));
    }
    Ok(
        match !summary.is_shut_out() && summary.warnings().is_empty() {
            true => 0,
            false => exit::WARNINGS,
        },
    )
}

fn document(epoch: &EpochSeen) -> Value {
    let boxes = epoch.boxes.iter();
    json!({
        "number": epoch.number,
        "began_at": epoch.record.created_at,
        "recipients": boxes.map(|own| json!({ "role": own.role, "recipient": own.recipient })).collect::<Vec<_>>(),
        "opens_catalog": epoch.opens_catalog,
        "opens_data": epoch.opens_data,
    })
}

fn text(epochs: &[EpochSeen], summary: &KeySummary, errors: &[Error]) -> String {
    let mut text = String::new();
    for epoch in epochs {
        if epoch.number == 1 {
            let _ = writeln!(text, "seal id {}", epoch.record.seal_id);
        }
        let own = match (epoch.opens_data, epoch.opens_catalog) {
            (true, _) => "everything",
            (false, true) => "the catalog, and no page",
            (false, false) => "nothing",
        };
        let _ = writeln!(
            text,
            "epoch {}: the identity at hand opens {own}",
            epoch.number
        );
        for one in &epoch.boxes {
            let _ = writeln!(text, "  {:<7} {}", one.role.as_str(), plain(&one.recipient));
        }
    }
    for error in errors {
        let hint = error.hint_text().unwrap_or_default();
        let _ = writeln!(text, "error     {}", plain(&format!("{error}; {hint}")));
    }
    if summary.is_shut_out() && summary.opened.is_some() {
        let (current, own) = (summary.current, summary.own_text());
        let _ = writeln!(text, "warning   epoch {current} is current, and {own}");
    }
    for (what, to_do) in summary.warnings() {
        let _ = writeln!(text, "warning   {}; {to_do}", plain(&what));
    }
    text
}
