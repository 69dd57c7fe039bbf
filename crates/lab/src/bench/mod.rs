//! Backup and restore side by side with peers and with the limits of the machine.

pub mod measure;
