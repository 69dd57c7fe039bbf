//! S3 servers for tests, from the folder that `scripts/setup` fills.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test states what must hold"
)]
#![allow(dead_code, reason = "not every test needs every server")]

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pgstrata_engine::repository::RepositoryOptions;
use tempfile::TempDir;

pub(crate) const ACCESS_KEY: &str = "pgstratatest";
pub(crate) const SECRET_KEY: &str = "pgstratatestsecret";
pub(crate) const BUCKET: &str = "backups";

/// A running server; it ends with this value.
pub(crate) struct S3 {
    child: Child,
    port: u16,
    _data: TempDir,
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl S3 {
    /// versitygw: honours create-if-absent.
    pub(crate) fn start() -> Self {
        Self::run("versitygw", |command, address, data| {
            command
                .args(["--access", ACCESS_KEY, "--secret", SECRET_KEY])
                .args(["--port", address, "--quiet", "posix"])
                .arg(data);
        })
    }

    /// `rclone serve s3`: ignores create-if-absent.
    pub(crate) fn start_hostile() -> Self {
        Self::run("rclone", |command, address, data| {
            command
                .args(["serve", "s3", "--addr", address, "--auth-key"])
                .arg(format!("{ACCESS_KEY},{SECRET_KEY}"))
                .arg(data);
        })
    }

    fn run(program: &str, arguments: impl Fn(&mut Command, &str, &Path)) -> Self {
        let path = tool(program);
        let data = tempfile::tempdir().unwrap();
        std::fs::create_dir(data.path().join(BUCKET)).unwrap();
        let port = free_port();
        let mut command = Command::new(&path);
        arguments(&mut command, &format!("127.0.0.1:{port}"), data.path());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command
            .spawn()
            .unwrap_or_else(|e| panic!("could not start \"{}\": {e}", path.display()));
        let server = Self {
            child,
            port,
            _data: data,
        };
        server.wait_until_it_listens(program);
        server
    }

    fn wait_until_it_listens(&self, program: &str) {
        let started = Instant::now();
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(
                started.elapsed() < Duration::from_secs(20),
                "{program} does not listen"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The repository at `prefix` of the server's bucket.
    pub(crate) fn options(&self, prefix: &str) -> RepositoryOptions {
        RepositoryOptions::new(format!("s3://{BUCKET}/{prefix}"))
            .with("endpoint", format!("http://127.0.0.1:{}", self.port))
            .with("region", "us-east-1")
            .with("allow_http", "true")
            .with("path_style", "true")
            .with("access_key_id", ACCESS_KEY)
            .with("secret_access_key", SECRET_KEY)
            .with("retry_seconds", "3")
    }
}

fn tool(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = root.join(".deps/bin").join(name);
    assert!(
        path.exists(),
        "\"{}\" is missing: run scripts/setup",
        path.display()
    );
    path
}

pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
