//! Does the store keep what the repository stands on?
//!
//! Write-once objects, the claim on a label and the manifest as commit record all
//! rest on create-if-absent; some S3 servers accept the condition and ignore it.
//! The probe finds out by trying, and removes its objects again.

use bytes::Bytes;
use futures::future;
use object_store::ObjectStoreExt;

use super::Repository;
use crate::error::{Error, Kind, Result};

/// What the names of its objects begin with.
pub(crate) const PROBE: &str = "probe-";

/// How many creates race for one name.
const RACERS: usize = 8;

pub(super) async fn run(repository: &Repository, prefix: &str) -> Result<()> {
    let id = format!("{PROBE}{:032x}", rand::random::<u128>());
    let separator = if prefix.is_empty() { "" } else { "/" };
    let probe = Probe {
        repository,
        prefix,
        single: format!("{prefix}{separator}{id}-1"),
        raced: format!("{prefix}{separator}{id}-2"),
    };
    let outcome = probe.all().await;
    let removed = probe.remove().await;
    outcome.and(removed)
}

struct Probe<'a> {
    repository: &'a Repository,
    prefix: &'a str,
    single: String,
    raced: String,
}

impl Probe<'_> {
    async fn all(&self) -> Result<()> {
        // A store that overwrites may store what lost a race after the probe has removed it: it is found out before.
        self.second_create_fails().await?;
        self.one_of_a_race_wins().await?;
        let (ranges, listings) =
            future::join(self.ranges_are_read(), self.listings_see_new_objects()).await;
        ranges.and(listings)
    }

    async fn second_create_fails(&self) -> Result<()> {
        let repository = self.repository;
        repository.create(&self.single, body(0)).await?;
        if repository.create(&self.single, body(0)).await.is_err() {
            return Err(self.refused("an object that was just created cannot be read back"));
        }
        let path = repository.path(&self.single)?;
        match repository.put_new(&path, &body(1)).await {
            Err(object_store::Error::AlreadyExists { .. }) => {}
            Err(error) => return Err(repository.error("could not write", &self.single, &error)),
            Ok(()) => return Err(self.overwrites()),
        }
        if repository.get(&self.single).await? != body(0) {
            return Err(self.overwrites());
        }
        Ok(())
    }

    async fn one_of_a_race_wins(&self) -> Result<()> {
        let repository = self.repository;
        let path = repository.path(&self.raced)?;
        let bodies: Vec<Bytes> = (0..RACERS).map(body).collect();
        let race = bodies.iter().map(|b| repository.put_new(&path, b));
        let results = future::join_all(race).await;
        let winners: Vec<usize> = (0..RACERS).filter(|&n| results[n].is_ok()).collect();
        match winners[..] {
            [winner] => {
                if repository.get(&self.raced).await? != bodies[winner] {
                    return Err(self.overwrites());
                }
                Ok(())
            }
            // The answer of the one that won was lost, and what it tried again met its own object.
            [] if repository
                .get(&self.raced)
                .await
                .is_ok_and(|found| bodies.contains(&found)) =>
            {
                Ok(())
            }
            [] => {
                let lost = results.into_iter().find_map(|r| match r {
                    Err(object_store::Error::AlreadyExists { .. }) | Ok(()) => None,
                    Err(error) => Some(error),
                });
                Err(match lost {
                    Some(error) => repository.error("could not write", &self.raced, &error),
                    None => self.refused("of several creates at once none succeeded"),
                })
            }
            _ => Err(self.overwrites()),
        }
    }

    async fn ranges_are_read(&self) -> Result<()> {
        let whole = body(0);
        let ranges = [(0, 16), (1000, 3000), (4095, 4096)].map(|(start, end)| start..end);
        let reading = ranges
            .clone()
            .map(|range| self.repository.get_range(&self.single, range));
        for (range, got) in ranges.into_iter().zip(future::try_join_all(reading).await?) {
            let expected = usize::try_from(range.start)
                .ok()
                .zip(usize::try_from(range.end).ok());
            if expected.is_none_or(|(start, end)| got != whole.slice(start..end)) {
                return Err(self.refused("reading a range of an object gives other bytes"));
            }
        }
        Ok(())
    }

    async fn listings_see_new_objects(&self) -> Result<()> {
        let names = self.repository.list_names(self.prefix).await?;
        for key in [&self.single, &self.raced] {
            let name = key.rsplit('/').next().unwrap_or(key);
            if !names.iter().any(|n| n == name) {
                return Err(self.refused("a listing misses an object that was just created"));
            }
        }
        Ok(())
    }

    /// Removes the probe's objects and proves that they are gone.
    async fn remove(&self) -> Result<()> {
        let (single, raced) = future::join(
            self.remove_object(&self.single),
            self.remove_object(&self.raced),
        )
        .await;
        single.and(raced)
    }

    async fn remove_object(&self, key: &str) -> Result<()> {
        let path = self.repository.path(key)?;
        let store = &self.repository.0.store;
        match self.repository.retrying(|| store.delete(&path)).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => {
                let error = self.repository.error("could not delete", key, &error);
                return match self.repository.note_left(&error) {
                    true => Ok(()),
                    false => Err(error),
                };
            }
        }
        match self.repository.size(key).await? {
            Some(_) => Err(self.refused("a deleted object is still there")),
            None => Ok(()),
        }
    }

    fn overwrites(&self) -> Error {
        self.refused("it overwrites objects although asked to create them only if absent")
    }

    fn refused(&self, what: &str) -> Error {
        let url = self.repository.url();
        Error::new(
            Kind::Refused,
            format!("the store at {url} cannot hold a repository: {what}"),
        )
        .hint("use a store with conditional writes (If-None-Match), or another version of it")
    }
}

/// 4 KiB that differ from racer to racer.
fn body(racer: usize) -> Bytes {
    (0..4096_usize)
        .map(|n| u8::try_from((n * 7 + racer * 31 + n / 256) % 251).unwrap_or(0))
        .collect()
}
