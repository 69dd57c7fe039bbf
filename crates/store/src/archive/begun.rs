//! Whether what the archive has of a timeline can come from where its history says that it began.
//!
//! Where a history was lost, a server that finds no file of that number begins the timeline a second time. Its history would give
//! the first server's WAL another past, and WAL of both would be taken for one. When a timeline begins, the page of its switch
//! point stays as it was, and each page behind it is of the new timeline (`StartupXLOG`, `src/backend/access/transam/xlog.c`).

use pgstrata_pgdata::wal_pages::{TimelinePages, WAL_PAGE_BYTES};
use pgstrata_pgdata::{ArchiveFile, Lsn, TimelineHistory, TimelineId, WalSegment};

use super::Archive;
use crate::error::{Error, Kind, Result};

impl Archive {
    /// Refuses a history that is not there yet, or cannot be read there, when the archive has WAL that another server wrote on its timeline. Where nobody
    /// can tell, it is right: who brings a history back that was lost must not be kept from it.
    ///
    /// # Errors
    /// `AlreadyExists`; those of the repository.
    pub(super) async fn require_begun_there(&self, history: &TimelineHistory) -> Result<()> {
        let timeline = history.timeline();
        let Some((number, name)) = self.first_file(timeline).await? else {
            return Ok(());
        };
        let own = history.entry(timeline);
        let begin = own.map_or(Lsn::INVALID, |own| own.begin);
        let size = self.segment_size;
        let begins_in = begin.segment(size);
        if number < begins_in {
            return Err(other_server(timeline, begin, &name));
        }
        let segment = WalSegment { timeline, number };
        let pages = TimelinePages::of(timeline, segment.start_lsn(size));
        let file = ArchiveFile::Segment(segment);
        let feed = |pages: &mut TimelinePages, piece: &[u8]| {
            pages.feed(piece);
            Ok(())
        };
        let key = self.key(file);
        let seen = match self.walk_object(file, &key, Some(feed), pages).await {
            Ok((_, pages)) => pages,
            Err(error)
                if error.kind() == Kind::NotFound
                    || error.is_lack_of_key()
                    || error.is_of_one_object() =>
            {
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let first_own = match number == begins_in {
            true => Lsn::new(begin.get().next_multiple_of(WAL_PAGE_BYTES)),
            false => segment.start_lsn(size),
        };
        let fits = match seen.first() {
            Some(first) => first == first_own,
            // The switch point may lie on the last page.
            None => seen.last_other() < Some(first_own),
        };
        match fits {
            true => Ok(()),
            false => Err(other_server(timeline, begin, &name)),
        }
    }
}

fn other_server(timeline: TimelineId, begin: Lsn, name: &str) -> Error {
    Error::new(
        Kind::AlreadyExists,
        format!(
            "the archive holds WAL of timeline {timeline} that does not come from there: this history says that the timeline began at \
             {begin}, and \"{name}\" is of a server for which it began elsewhere"
        ),
    )
    .hint(
        "two servers have begun one timeline, because its history was missing when the second one was promoted. Store the history \
         of the server whose WAL is there, from its pg_wal. Give this server a name of its own (pgstrata init --cluster NAME, the \
         same NAME in its archive_command and in its configuration file, a full backup), or restore it once more",
    )
}
