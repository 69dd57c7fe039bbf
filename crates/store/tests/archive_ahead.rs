//! What is fetched ahead of recovery is no more than segments.

#![allow(clippy::unwrap_used, reason = "a test states what must hold")]

mod support;

use pgstrata_store::archive::{self, Ahead, GetOptions, Spool};
use support::wal;

/// Whoever may create objects would have a recovery run out of memory.
#[tokio::test]
async fn an_object_that_is_longer_than_a_segment_is_not_fetched_ahead() {
    let repository = wal::repository().await;
    let scratch = tempfile::tempdir().unwrap();
    for number in 1..=2 {
        let path = wal::write(scratch.path(), 1, number, 1);
        wal::push(&repository, &path).await.unwrap();
    }
    let key = wal::name().wal_key("00000001", &wal::file_name(1, 2));
    let get = async |reader: &str| {
        let options = GetOptions {
            ahead: Some(Ahead {
                spool: Spool::new(scratch.path().join("spool"), reader),
                count: 8,
            }),
            system_identifier: Some(wal::SYSTEM),
            ..GetOptions::default()
        };
        let (name, to) = (wal::file_name(1, 1), scratch.path().join("to"));
        let got = archive::get(&wal::cluster_in(&repository), &name, &to, &options).await;
        got.unwrap().ahead
    };
    assert_eq!(get("/data").await, [wal::file_name(1, 2)]);
    // A segment of ours, and something behind it.
    let mut long = repository.get(&key).await.unwrap().to_vec();
    long.resize(long.len() + (4 << 20), 0);
    repository.delete(&key).await.unwrap();
    repository.create(&key, long.into()).await.unwrap();
    assert_eq!(get("/other").await, [""; 0]);
}
