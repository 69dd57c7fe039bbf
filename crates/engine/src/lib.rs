//! pgstrata-engine.
