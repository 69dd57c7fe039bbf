//! Frames: how the layers of a chain are read, and how a new layer is written, whatever the command.
//!
//! [`Chain`] gives what the indexes and digest parts say. Frames are fetched with few requests: [`FrameReader`] decodes
//! very many on many threads, in the order in which files need them; [`FetchedFrames`] holds a limited number as they are
//! stored. [`LayerWriter`] makes packs and index parts. All of them work for threads outside of the runtime, and none
//! knows a server or a data directory.

mod chain;
mod fetch;
mod pages;
mod queue;
mod read;
mod whole;
mod write;

pub(crate) use chain::{Chain, Entries};
pub(crate) use fetch::{FetchedFrames, FrameAddress};
pub(crate) use pages::{bytes_of, pages_of};
pub(crate) use read::{FrameReader, WantedFrame, WantedFrames};
pub(crate) use whole::check_plain_file;
pub(crate) use write::{IndexParts, LayerWriter, PackWriter};
