//! Pages from the layers to the files: what is there is compared, what differs is fetched and written.

pub(super) mod compare;
mod direct;
pub(super) mod listing;
mod region;
pub(super) mod wal;
pub(super) mod write;
