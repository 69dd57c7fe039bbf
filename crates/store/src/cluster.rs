//! One cluster's part of a repository: what almost everything in it is asked of.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pgstrata_layer::cluster::{self, ClusterRecord};
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::manifest::Manifest;

use crate::error::{Error, Kind, Result};
use crate::keys::{Home, Keys, Sealing};
use crate::repository::{PROBE, Repository};

/// A repository, and the name of a cluster in it. Cheap to clone.
///
/// The cluster need not be there: [`ClusterRepository::record`] says whether it is.
#[derive(Clone, Debug)]
pub struct ClusterRepository {
    /// Where its objects are.
    pub repository: Repository,
    /// The name under which they are there.
    pub name: ClusterName,
    /// What opens its objects, when they are sealed.
    pub(crate) keys: Arc<Keys>,
}

impl ClusterRepository {
    /// The part of `name` in `repository`.
    #[must_use]
    pub fn new(repository: &Repository, name: &ClusterName) -> Self {
        Self {
            repository: repository.clone(),
            name: name.clone(),
            keys: Arc::default(),
        }
    }

    /// The record of the cluster, as `init` made it. Whoever reads the record reads it here.
    ///
    /// # Errors
    /// `Kind::NotFound` when there is no such cluster in the repository; `Damaged` when the record is lost though layers are
    /// there, cannot be read, or is another cluster's.
    pub async fn record(&self) -> Result<ClusterRecord> {
        let key = self.name.cluster_key();
        // It is not authenticated: who can overwrite it could take back that objects are locked.
        let (bytes, is_first) = futures::join!(
            self.repository.get_record(&key),
            self.repository.require_first(&key)
        );
        is_first?;
        let bytes = match bytes {
            Err(error) if error.kind() == Kind::NotFound => return Err(self.absent().await),
            got => got?,
        };
        let record = cluster::decode(&bytes)
            .map_err(|error| Error::from(error).while_doing(format!("could not read \"{key}\"")))?;
        self.require_own(&record)?;
        self.keys.note(&record);
        if let Some(retention) = record.retention {
            self.repository.retain(retention.into());
        }
        Ok(record)
    }

    /// Refuses a store that cannot lock what the record says is locked; a directory never can, and takes it.
    ///
    /// # Errors
    /// `Unsupported` then; `Repository` when that cannot be known.
    pub async fn require_lock(&self, record: &ClusterRecord) -> Result<()> {
        if record.retention.is_none() || self.repository.directory().is_some() {
            return Ok(());
        }
        self.repository.require_lock().await
    }

    /// Waits for an answer of the repository, whatever it is, and no longer than that: a store that stalls is believed for
    /// minutes else, which is too long for who has another one.
    ///
    /// # Errors
    /// `Repository` when none has come.
    pub async fn require_answer(&self, within: Duration) -> Result<()> {
        let key = self.name.cluster_key();
        let asked = tokio::time::timeout(within, self.repository.get_record(&key));
        match asked.await {
            // What it says is judged by who needs it.
            Ok(_) => Ok(()),
            Err(_) => {
                let url = self.repository.url();
                let what = format!("{url} has not answered within {} s", within.as_secs());
                Err(Error::new(Kind::Repository, what)
                    .hint("look whether the store is up, and what it logs"))
            }
        }
    }

    /// Whether its record was stored when that of `other` was, as far as the stores tell: otherwise they are two.
    ///
    /// # Errors
    /// `Repository` when they cannot be asked.
    pub async fn may_be(&self, other: &Self) -> Result<bool> {
        let (here, there) = (self.name.cluster_key(), other.name.cluster_key());
        let here = self.repository.modified(&here);
        let (here, there) = futures::try_join!(here, other.repository.modified(&there))?;
        let both = here.zip(there);
        // Some tell whole seconds.
        Ok(both.is_some_and(|(here, there)| here.duration_since(there).abs().as_secs() == 0))
    }

    /// Whether `other` is the same repository, whatever each is called: what is created in this one is there. It does not stay.
    ///
    /// # Errors
    /// When this one cannot be written, or the other not be asked.
    pub async fn is(&self, other: &Self) -> Result<bool> {
        let chance = rand::random::<u128>();
        let key = format!("{}/{PROBE}{chance:032x}", self.name.as_str());
        self.repository.create(&key, Bytes::new()).await?;
        let found = other.repository.size(&key).await;
        self.repository.tidy(&[key]).await;
        Ok(found?.is_some())
    }

    /// What it means that there is no record: there is no such cluster, or what is there has lost it.
    async fn absent(&self) -> Error {
        let (name, url) = (self.name.as_str(), self.repository.url());
        let layers = self.repository.list_names(&self.name.layers_prefix()).await;
        let count = layers.map_or(0, |layers| layers.len());
        if count == 0 {
            let what = format!("cluster \"{name}\" is not in the repository {url}");
            return Error::new(Kind::NotFound, what).hint(self.advice_if_absent());
        }
        let key = self.name.cluster_key();
        let what = format!(
            "\"{key}\", the record of cluster \"{name}\", is lost from the repository {url}, where {count} layers are"
        );
        let back =
            "bring the object back from a copy of the repository or from an older version of it";
        Error::new(Kind::Damaged, what).hint(match self.has_keys().await {
            Ok(false) => format!(
                "{back}; \"pgstrata init\" with a data directory of the same server makes a new one, and \"pgstrata verify\" then \
                 tells whether the layers are that server's"
            ),
            Ok(true) | Err(_) => format!(
                "{back}; \"pgstrata init\" would make one with another seal id, which opens none of the layers"
            ),
        })
    }

    /// Whether anybody has begun to seal the cluster.
    ///
    /// # Errors
    /// `Repository` when it cannot be listed.
    pub async fn has_keys(&self) -> Result<bool> {
        let prefix = self.name.keys_prefix();
        Ok(!self.repository.list_names(&prefix).await?.is_empty())
    }

    /// What to do when the cluster is not there. A place where nothing is at all may be one that was not mounted.
    pub(crate) fn advice_if_absent(&self) -> String {
        let Some(directory) = self.repository.directory() else {
            return "create it with \"pgstrata init\", or look at --repo and --cluster".to_owned();
        };
        let shown = directory.display();
        let is_file = std::fs::metadata(directory).is_ok_and(|found| !found.is_dir());
        if is_file {
            return format!("{shown} is a file, and a repository is a directory: look at --repo");
        }
        let mut entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        let is_own = |name: &std::ffi::OsStr| {
            name != "lost+found" && !name.as_encoded_bytes().starts_with(b".")
        };
        match entries.any(|entry| is_own(&entry.file_name())) {
            true => "look at --repo and --cluster, or create it with \"pgstrata init\"".to_owned(),
            false => format!(
                "{shown} is empty or not there: is it mounted? Only in a new repository create the cluster, with \"pgstrata init\""
            ),
        }
    }

    /// The same part of the repository, for somebody with these keys.
    #[must_use]
    pub fn with_keys(mut self, keys: Keys) -> Self {
        self.keys = Arc::new(keys);
        self
    }

    /// The same part of the repository, for who copies into it out of `source`: what opens an epoch there opens it here,
    /// where it may be sealed for others. Nothing is taken for known that was found out of it before.
    ///
    /// # Errors
    /// As for [`ClusterRepository::sealing`] of `source`.
    pub async fn with_keys_of(&self, source: &Self) -> Result<Self> {
        let lent = source.sealing().await?.ring().cloned();
        let keys = self.keys.lent(lent);
        Ok(self.clone().with_keys(keys))
    }

    /// The same part of the repository, for who supposes what its record says: how its objects would then be is not
    /// taken for how they are.
    pub(crate) fn supposed(&self) -> Self {
        self.clone().with_keys(self.keys.anew())
    }

    /// Whether nobody has said that the cluster is sealed.
    pub(crate) fn expects_clear(&self) -> bool {
        self.keys.expects_clear()
    }

    /// What is to be said of a sealed cluster when nobody has said which one is meant.
    #[must_use]
    pub fn doubt(&self, record: &ClusterRecord) -> Option<Error> {
        let sealing = record.sealing.as_ref()?;
        if self.keys.names_seal_id() {
            return None;
        }
        let id = &sealing.seal_id;
        let what = format!(
            "nobody has said that this cluster must have seal id {id}: whoever can write to the repository could put a cluster \
             of his own in its place, and backups would be sealed for him"
        );
        let advice = format!(
            "compare the id with the one that init printed, and write seal-id = \"{id}\" into the configuration file"
        );
        Some(Error::new(Kind::Refused, what).hint(advice))
    }

    /// The seal id of a sealed cluster when nobody has said which one is meant, in hexadecimal digits.
    ///
    /// # Errors
    /// As for [`ClusterRepository::sealing`].
    pub async fn unnamed_seal_id(&self) -> Result<Option<String>> {
        if self.keys.names_seal_id() {
            return Ok(None);
        }
        let ring = self.sealing().await?.ring();
        Ok(ring.map(|ring| ring.current().seal_id.clone()))
    }

    /// Where its objects are, for who deals with keys.
    #[must_use]
    pub fn home(&self) -> Home<'_> {
        Home {
            repository: &self.repository,
            name: &self.name,
        }
    }

    /// How the cluster's objects are. Found out once.
    ///
    /// # Errors
    /// As for [`ClusterRepository::record`]; `Refused` when the cluster is not sealed and an identity was given; `Damaged`
    /// when an epoch was forged.
    pub async fn sealing(&self) -> Result<&Sealing> {
        self.keys.sealing(self.home(), self.record()).await
    }

    /// As [`ClusterRepository::sealing`], for who has the record.
    pub(crate) async fn sealing_with(&self, record: &ClusterRecord) -> Result<&Sealing> {
        let record = record.clone();
        self.keys.sealing(self.home(), async { Ok(record) }).await
    }

    /// Refuses to seal anything when the repository shows a newer epoch than the last that is known.
    ///
    /// # Errors
    /// As for [`crate::keys::Ring::require_newest`].
    pub async fn require_newest_epoch(&self) -> Result<()> {
        match self.sealing().await? {
            Sealing::Clear => Ok(()),
            Sealing::Sealed(ring) => Box::pin(ring.require_newest(self.home())).await,
        }
    }

    /// Whether what failed so may be opened now: its epoch was not known, and the epochs were read once more.
    pub(crate) async fn knows_more(&self, error: &Error) -> Result<bool> {
        Ok(error.is_lost_epoch() && self.sealing().await?.look_again(self.home()).await)
    }

    /// What `open` makes of an object. When its epoch is not known, the epochs are read once more.
    pub(crate) async fn opened<T>(&self, open: impl Fn(&Sealing) -> Result<T>) -> Result<T> {
        let sealing = self.sealing().await?;
        match open(sealing) {
            Err(error) if self.knows_more(&error).await? => open(sealing),
            opened => opened,
        }
    }

    /// The object `key` of the layer with that manifest, opened.
    ///
    /// # Errors
    /// As for [`Repository::get`]; `Damaged` when it is not what was sealed there; `Refused` when no key for it is there.
    pub async fn get_of(&self, manifest: &Manifest, key: &str) -> Result<Bytes> {
        let seal = self.sealing().await?.layer(manifest)?;
        seal.open(&self.name, key, self.repository.get(key).await?)
    }

    /// Bytes `range` of what the object `key` of the layer with that manifest holds.
    ///
    /// # Errors
    /// As for [`ClusterRepository::get_of`].
    pub async fn get_range_of(
        &self,
        manifest: &Manifest,
        key: &str,
        range: Range<u64>,
    ) -> Result<Bytes> {
        let seal = self.sealing().await?.layer(manifest)?;
        if seal.is_clear() || range.is_empty() {
            return self.repository.get_range(key, range).await;
        }
        let place = seal.stored_range(&range);
        let stored = self.repository.get_up_to(key, place).await?;
        seal.open_range(&self.name, key, &range, stored)
    }

    /// Refuses a record that is another cluster's.
    pub(crate) fn require_own(&self, record: &ClusterRecord) -> Result<()> {
        if record.name == self.name.as_str() {
            return Ok(());
        }
        let key = self.name.cluster_key();
        Err(Error::new(
            Kind::Damaged,
            format!(
                "could not read \"{key}\": it is the record of cluster \"{}\"",
                record.name
            ),
        ))
    }
}
