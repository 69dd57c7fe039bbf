//! Reports: for a terminal, a browser, a spreadsheet, a build server.

pub mod chart;
pub mod csv;
pub mod html;
pub mod junit;
pub mod pictures;
pub mod terminal;
