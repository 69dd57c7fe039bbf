//! The testbed: PostgreSQL clusters, S3 and Azure servers and a faulty network for tests.
//!
//! Everything runs on this machine, on free ports, in directories of its own, and
//! ends with the value that stands for it, also when the program that holds the
//! value is killed. Tests of every crate and the lab stand on it; it knows nothing
//! of the product.

pub mod azure;
pub mod certificates;
pub mod cluster;
mod leash;
mod os_user;
pub mod programs;
pub mod proxy;
pub mod recorder;
mod request;
pub mod s3;
