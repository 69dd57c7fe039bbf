//! The manifest of a backup: what the server said at its end, and what was stored.

use jiff::Timestamp;
use pgstrata_layer::manifest::{CorruptPage, Manifest, ParentRef};
use pgstrata_pgdata::label::BackupFrom;
use pgstrata_pgdata::{BackupLabel, Lsn};
use pgstrata_store::catalog::{WRITTEN_BY, hex};
use pgstrata_store::error::{Error, Kind, Result};

use super::copy::pipeline::Stored;
use super::copy::read::corrupt_page_error;
use super::decide::prepare::Ready;
use super::options::CorruptPagePolicy;
use super::run::{Backup, Copied, Start};
use crate::server::session::Stopped;

impl Backup<'_> {
    /// Pages of which a complaint stands; an error when they are to fail the backup.
    pub(super) fn corrupt_pages(
        &self,
        stored: &mut Stored,
        stop_lsn: Lsn,
    ) -> Result<Vec<CorruptPage>> {
        let complaints = std::mem::take(&mut stored.assembled.complaints);
        let pages = complaints.standing(&stored.check, stop_lsn);
        for page in pages.iter().take(10) {
            tracing::warn!(
                "block {} of \"{}\" is corrupt: {}",
                page.block,
                page.path,
                page.reason
            );
        }
        match pages.first() {
            Some(page) if self.options.on_corrupt_page == CorruptPagePolicy::Fail => {
                Err(corrupt_page_error(&page.path, page.block, &page.reason))
            }
            _ => Ok(pages),
        }
    }

    pub(super) fn manifest(
        &self,
        ready: &Ready,
        copied: &Copied,
        stopped: &Stopped,
        corrupt_pages: Vec<CorruptPage>,
    ) -> Manifest {
        let control = &copied.control.bytes;
        let used = control
            .iter()
            .rposition(|&byte| byte != 0)
            .map_or(0, |last| last + 1);
        let assembled = &copied.stored.assembled;
        Manifest {
            label: self.layer.label().as_str().to_owned(),
            layer_id: hex(&self.layer.id()),
            parent: self.chain.layers.first().map(|parent| ParentRef {
                label: parent.label.as_str().to_owned(),
                manifest_digest: parent.manifest_digest.clone(),
            }),
            replaces: Vec::new(),
            inputs: Vec::new(),
            beside: copied.beside.clone(),
            cluster: ready.identity.clone(),
            written_by: WRITTEN_BY.to_owned(),
            started_at: self.started_at,
            finished_at: Timestamp::now(),
            start_lsn: copied.start_lsn,
            stop_lsn: stopped.lsn,
            timeline: copied.timeline,
            from_standby: ready.session.facts().in_recovery,
            change_source: copied.source.record.clone(),
            tracker_token: copied.token.clone(),
            backup_label: stopped.backup_label.clone(),
            tablespace_map: stopped.tablespace_map.clone(),
            pg_control: hex(&control[..used]),
            pg_control_size: u32::try_from(control.len()).expect("8192"),
            tablespaces: copied.tablespaces.clone(),
            index: assembled.parts.clone(),
            pack_count: copied.stored.pack_count,
            pack_bytes: copied.stored.pack_bytes,
            totals: assembled.totals,
            corrupt_pages,
            encryption: self.layer.seal().encryption(),
        }
    }
}

/// The label must be of this backup: of this start, this timeline, this kind of server.
pub(super) fn check_label(stopped: &Stopped, start: &Start, ready: &Ready) -> Result<()> {
    let (start_lsn, timeline) = (start.lsn, start.timeline());
    let wrong = |what: String| {
        Error::new(
            Kind::Server,
            format!("the backup label of the server is not that of this backup: {what}"),
        )
    };
    let label =
        BackupLabel::parse(&stopped.backup_label).map_err(|error| wrong(error.to_string()))?;
    if label.start_lsn != start_lsn || label.start_timeline != timeline {
        return Err(wrong(format!(
            "it starts at {} on timeline {}, expected {start_lsn} on {timeline}",
            label.start_lsn, label.start_timeline
        )));
    }
    if (label.backup_from == BackupFrom::Standby) != ready.session.facts().in_recovery {
        return Err(wrong(
            "the server has changed between primary and standby".to_owned(),
        ));
    }
    if stopped.lsn < start_lsn {
        return Err(wrong(format!(
            "it ends at {}, before its start at {start_lsn}",
            stopped.lsn
        )));
    }
    Ok(())
}
