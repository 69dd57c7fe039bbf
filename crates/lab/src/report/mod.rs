//! Reports: for a terminal, a browser, a document, a spreadsheet, a build server.

pub mod analysis;
mod arms;
mod band;
pub mod beside;
pub mod bottleneck;
pub mod chart;
pub mod conclusion;
pub mod csv;
pub mod files;
mod forest;
pub mod html;
pub mod junit;
pub mod markdown;
pub mod output;
pub mod pictures;
mod rows;
pub mod sweep;
pub mod terminal;
pub(crate) mod unstable;
