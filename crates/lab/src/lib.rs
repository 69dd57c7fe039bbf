//! pgstrata-lab.
