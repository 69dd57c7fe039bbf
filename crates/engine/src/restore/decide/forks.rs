//! Recoveries that would leave their history: where a timeline begins, and the archive has only the old timeline's WAL.
//!
//! A server that does not find the new timeline's copy of a segment takes the old one's, and replays what was abandoned
//! there (`XLogFileReadAnyTLI`). So it is the state after a point-in-time restore or a failover until the first segment of
//! the new timeline is archived, or when that was lost. A target before the switch point is reached as ever. A recovery to
//! the end of the archive is told to stop at the switch point. Everything else is refused.

use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::TimelineId;
use pgstrata_store::archive::Coverage;
use pgstrata_store::error::{Error, Kind, Result};

use super::locate::{EVERYWHERE, Locator};
use super::scan::Unread;
use super::select::{Request, Selection};
use super::sightings::Wanted;
use crate::restore::target::Target;

impl Locator<'_> {
    /// The way to the end of the archive, when that is a switch point behind which the server would go on.
    pub(super) async fn fork(
        &self,
        mut selection: Selection,
        request: &Request<'_>,
    ) -> Result<Selection> {
        let Some(old) = selection.coverage.strays_to else {
            return Ok(selection);
        };
        let coverage = &selection.coverage;
        if *request.target == Target::Standby {
            return Err(self.astray(request.target, coverage, old));
        }
        self.require_record(request, coverage, old).await?;
        let (switch, new) = (coverage.end, coverage.missing.timeline);
        selection.notes.push(format!(
            "recovery follows timeline {old} up to {switch}, where timeline {new} began, and stops there: segment {} is \
             not in the archive, so nothing that was written on timeline {new} is restored",
            coverage.missing.file_name(self.size())
        ));
        selection.stop_before = Some(switch);
        selection.history = self.listed.history(old);
        Ok(selection)
    }

    /// Recovery stops before the first record from the switch point on, which must be there.
    async fn require_record(
        &self,
        request: &Request<'_>,
        coverage: &Coverage,
        old: TimelineId,
    ) -> Result<()> {
        let first = coverage.end.segment(self.size());
        let tail = self.listed.tail(old, first);
        let last = tail.map_or(first, |tail| tail.last);
        let end = Lsn::new((last + 1).saturating_mul(self.size().get()));
        let mut scan = self.scan(request, Wanted::Record(coverage.end));
        scan.forward(&[(old, first, last)], coverage.end..end)
            .await?;
        match scan.seen.hits(EVERYWHERE).next() {
            Some(_) => Ok(()),
            None => Err(self.astray(request.target, coverage, old)),
        }
    }

    /// Where WAL could not be read the server may read it all the same, find no target in it, and go on to the wrong
    /// one.
    pub(super) fn require_on_way(
        &self,
        request: &Request<'_>,
        coverage: &Coverage,
        unread: &Unread,
    ) -> Result<()> {
        match coverage.strays_to {
            Some(old) => {
                let error = self.astray(request.target, coverage, old);
                Err(error.while_doing(format!("archived WAL could not be read ({})", unread.why)))
            }
            None => Ok(()),
        }
    }

    fn astray(&self, target: &Target, coverage: &Coverage, old: TimelineId) -> Error {
        let missing = coverage.missing.file_name(self.size());
        let (switch, new) = (coverage.end, coverage.missing.timeline);
        let error = Error::new(
            Kind::WalMissing,
            format!(
                "WAL segment {missing} is not in the archive: instead of it a server that recovers to {target} would take \
                 the WAL of timeline {old}, beyond {switch}, where timeline {new} began"
            ),
        );
        error.hint(format!(
            "Archive the segment: run \"select pg_switch_wal()\" on the server of timeline {new}, or \"pgstrata \
             archive-push\" with the file from its pg_wal. Without it a point before {switch} can be restored, or all of \
             timeline {old} with --target-timeline {old}."
        ))
    }
}
