//! Merging: adjacent layers of a chain become one, in the repository, without the server.
//!
//! The merged layer has the state of the newest of its inputs and says so: `replaces` in its manifest names that layer,
//! and whoever stands on it may stand on the merged one instead. It is made as every layer is: claim, packs, index,
//! manifest last. Killed before the manifest, it left only objects that nothing names; killed after it, both ways to
//! restore are there. Inputs go only when the merged layer has been read back and compared, when nothing else stands on
//! them, when no server goes on from them alone, and when the caller asks for it.
//!
//! Memory: a window of 64 MiB of frames, what is encoded out of it, two packs, and an index part for each layer.

mod compare;
mod run;
mod window;
mod write;

use pgstrata_layer::frame::Codec;
use pgstrata_layer::label::Label;
use serde::Serialize;

pub(crate) use run::{Going, comparisons, make, verify_replacements};
pub use run::{execute, plan};

/// What to merge.
#[derive(Clone, Debug)]
pub struct MergeOptions {
    /// The newest of the layers: the merged one has its state.
    pub label: Label,
    /// The oldest of them; `None` is the chain's full layer.
    pub into: Option<Label>,
    /// Compression of frames that are encoded anew.
    pub codec: Codec,
    /// Threads that decode and encode.
    pub jobs: usize,
    /// Whether inputs that nothing else stands on are removed afterwards.
    pub remove: bool,
    /// Whether they are also when a restore may be reading them.
    pub ignore_restores: bool,
}

/// One of the layers to be merged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Input {
    /// Its label.
    pub label: String,
    /// Bytes of its packs.
    pub pack_bytes: u64,
    /// Whether it can go when the merged layer is there.
    pub removable: bool,
}

/// What a merge will do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MergePlan {
    /// The inputs, newest first.
    pub inputs: Vec<Input>,
    /// What the merged layer stands on; nothing when it is a full layer.
    pub stands_on: Option<String>,
    /// The merged layer, when an earlier merge has made it.
    pub existing: Option<String>,
    /// What keeps inputs from being removed now.
    pub notes: Vec<String>,
}

/// What a merge has done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MergeReport {
    /// The merged layer.
    pub label: String,
    /// The inputs, newest first.
    pub inputs: Vec<String>,
    /// What the merged layer stands on.
    pub stands_on: Option<String>,
    /// Frames copied as they were, and their bytes.
    pub frames_copied: u64,
    /// See `frames_copied`.
    pub copied_bytes: u64,
    /// Frames encoded anew, and their bytes.
    pub frames_encoded: u64,
    /// See `frames_encoded`.
    pub encoded_bytes: u64,
    /// Bytes fetched from the inputs' packs.
    pub fetched_bytes: u64,
    /// Bytes of the merged layer's packs.
    pub pack_bytes: u64,
    /// Inputs that were removed.
    pub removed: Vec<String>,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// What the user should know.
    pub notes: Vec<String>,
}
