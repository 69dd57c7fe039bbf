//! pgstrata-layer.
