//! Where the cluster goes: which directories, who holds them, and what is in them already.

pub(super) mod access;
pub(super) mod beneath;
pub(super) mod claim;
mod foreign;
pub(super) mod in_place;
pub(super) mod layout;
pub(super) mod links;
pub(super) mod mounts;
pub(super) mod own_settings;
pub(super) mod running;
pub(super) mod unarchived;
