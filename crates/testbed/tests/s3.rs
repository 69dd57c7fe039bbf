//! The S3 servers: that one keeps what exists and the other does not is what
//! other tests build on.

#![allow(clippy::unwrap_used, reason = "helpers of tests may fail like tests")]

use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutResult};
use pgstrata_testbed::s3::S3Server;

fn client(server: &S3Server) -> AmazonS3 {
    server.client(server.endpoint()).unwrap()
}

async fn create(store: &AmazonS3, body: &'static str) -> Result<PutResult, Error> {
    let mode = PutMode::Create.into();
    store.put_opts(&Path::from("a/b"), body.into(), mode).await
}

async fn contents(store: &AmazonS3) -> Vec<u8> {
    let object = store.get(&Path::from("a/b")).await.unwrap();
    object.bytes().await.unwrap().to_vec()
}

#[tokio::test]
async fn the_honest_server_creates_only_what_is_absent() {
    let server = S3Server::start().unwrap();
    let store = client(&server);
    create(&store, "first").await.unwrap();
    let second = create(&store, "second").await;
    assert!(
        matches!(second, Err(Error::AlreadyExists { .. })),
        "{second:?}"
    );
    assert_eq!(contents(&store).await, b"first");
    let file = server.bucket_dir().join("a/b");
    assert_eq!(std::fs::read(file).unwrap(), b"first");
}

#[tokio::test]
async fn the_hostile_server_overwrites_what_exists() {
    let server = S3Server::start_hostile().unwrap();
    let store = client(&server);
    create(&store, "first").await.unwrap();
    create(&store, "second").await.unwrap();
    assert_eq!(contents(&store).await, b"second");
}

#[tokio::test]
async fn a_wrong_secret_is_refused() {
    for server in [S3Server::start(), S3Server::start_hostile()] {
        let server = server.unwrap();
        let stranger = AmazonS3Builder::new()
            .with_endpoint(server.endpoint())
            .with_access_key_id(server.access_key())
            .with_secret_access_key("not the secret")
            .with_bucket_name(server.bucket())
            .with_allow_http(true)
            .build()
            .unwrap();
        assert!(create(&stranger, "x").await.is_err());
    }
}

#[test]
fn a_server_ends_with_its_value() {
    let server = S3Server::start().unwrap();
    let address = server.endpoint().replace("http://", "");
    let directory = server.bucket_dir();
    drop(server);
    assert!(std::net::TcpStream::connect(address).is_err());
    assert!(!directory.exists());
}
