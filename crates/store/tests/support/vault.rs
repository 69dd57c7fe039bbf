//! A sealed cluster in memory, with a reader and a writer.

use bytes::Bytes;
use jiff::Timestamp;
use pgstrata_layer::cluster::{self, ClusterRecord, SEALED_FORMAT, SealRecord as Record};
use pgstrata_layer::epoch::KeyRole;
use pgstrata_layer::keys::ClusterName;
use pgstrata_layer::manifest::{
    ChangeSource, ChangeSourceRecord, ClusterIdentity, Manifest, Totals,
};
use pgstrata_pgdata::lsn::Lsn;
use pgstrata_pgdata::timeline::TimelineId;
use pgstrata_store::cluster::ClusterRepository;
use pgstrata_store::keys::{self, Identities, Keys, LayerSeal, Recipients};
use pgstrata_store::repository::Repository;

use super::wal;

/// A person with an identity.
pub(crate) struct Person {
    pub(crate) identity: String,
    pub(crate) recipient: String,
}

impl Person {
    pub(crate) fn new() -> Self {
        let (identity, recipient) = keys::new_identity();
        Self {
            identity: identity.to_string(),
            recipient,
        }
    }
}

pub(crate) fn name() -> ClusterName {
    ClusterName::parse("vault").unwrap()
}

pub(crate) fn opened_by(repository: &Repository, person: &Person) -> ClusterRepository {
    let identities = Identities::parse(&person.identity, "test").unwrap();
    ClusterRepository::new(repository, &name()).with_keys(Keys::new(identities, None))
}

/// The cluster, and who opens it.
pub(crate) struct Vault {
    pub(crate) repository: Repository,
    pub(crate) reader: Person,
    pub(crate) writer: Person,
    pub(crate) seal_id: String,
}

impl Vault {
    pub(crate) async fn new() -> Self {
        Self::within(Repository::memory()).await
    }

    /// In a repository with nothing in it.
    pub(crate) async fn within(repository: Repository) -> Self {
        let (reader, writer) = (Person::new(), Person::new());
        let plain = ClusterRepository::new(&repository, &name());
        let recipients = Recipients {
            all: vec![
                (KeyRole::Reader, reader.recipient.clone()),
                (KeyRole::Writer, writer.recipient.clone()),
            ],
        };
        let seal_id = keys::begin(plain.home(), &recipients).await.unwrap();
        let vault = Self {
            repository,
            reader,
            writer,
            seal_id,
        };
        vault.put_record(&vault.seal_id).await;
        vault
    }

    pub(crate) async fn put_record(&self, seal_id: &str) {
        let record = ClusterRecord {
            name: name().as_str().to_owned(),
            format: SEALED_FORMAT,
            system_identifier: wal::SYSTEM,
            major: 15,
            catalog_version: 1,
            block_size: 8192,
            wal_segment_size: wal::MIB,
            created_at: Timestamp::now(),
            written_by: "test".to_owned(),
            sealing: Some(Record {
                version: 1,
                seal_id: seal_id.to_owned(),
            }),
            retention: None,
        };
        let body = Bytes::from(cluster::encode(&record));
        self.repository
            .create(&name().cluster_key(), body)
            .await
            .unwrap();
    }

    pub(crate) fn reader(&self) -> ClusterRepository {
        opened_by(&self.repository, &self.reader)
    }

    pub(crate) fn writer(&self) -> ClusterRepository {
        opened_by(&self.repository, &self.writer)
    }

    pub(crate) fn recipients(&self) -> Recipients {
        Recipients {
            all: vec![
                (KeyRole::Reader, self.reader.recipient.clone()),
                (KeyRole::Writer, self.writer.recipient.clone()),
            ],
        }
    }

    /// Puts other bytes where an object is.
    pub(crate) async fn put(&self, key: &str, bytes: &[u8]) {
        self.repository.delete(key).await.unwrap();
        let bytes = Bytes::copy_from_slice(bytes);
        self.repository.create(key, bytes).await.unwrap();
    }
}

pub(crate) fn manifest(label: &str, id: [u8; 16], seal: &LayerSeal) -> Manifest {
    Manifest {
        label: label.to_owned(),
        layer_id: id.iter().map(|byte| format!("{byte:02x}")).collect(),
        parent: None,
        replaces: Vec::new(),
        inputs: Vec::new(),
        beside: None,
        cluster: ClusterIdentity {
            system_identifier: 42,
            major: 18,
            catalog_version: 1,
            block_size: 8192,
            wal_segment_size: 1 << 20,
            data_checksum_version: 0,
        },
        written_by: "test".to_owned(),
        started_at: Timestamp::now(),
        finished_at: Timestamp::now(),
        start_lsn: Lsn::new(1),
        stop_lsn: Lsn::new(2),
        timeline: TimelineId::FIRST,
        from_standby: false,
        change_source: ChangeSourceRecord {
            used: ChangeSource::Everything,
            reason: "secret reason".to_owned(),
        },
        tracker_token: None,
        backup_label: "secret label".to_owned(),
        tablespace_map: None,
        pg_control: "00ff".to_owned(),
        pg_control_size: 8192,
        tablespaces: Vec::new(),
        index: Vec::new(),
        pack_count: 0,
        pack_bytes: 0,
        totals: Totals::default(),
        corrupt_pages: Vec::new(),
        encryption: seal.encryption(),
    }
}
