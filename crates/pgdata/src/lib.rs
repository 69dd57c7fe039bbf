//! pgstrata-pgdata.
