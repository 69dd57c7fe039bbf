//! A link to an S3 server as it is from another building: every request arrives late.
//!
//! Bytes pass at full speed. What a client sends first, or first after the server has answered, waits: HTTP/1.1 without
//! pipelining, as S3 clients speak it, has one request at a time on a connection.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// A proxy before a server, on a free loopback port. Its threads end with their connections.
#[derive(Debug)]
pub struct SlowLink {
    endpoint: String,
    requests: Arc<AtomicU64>,
}

impl SlowLink {
    /// Delays requests to `endpoint`, an `http://host:port`, by `latency`.
    pub fn before(endpoint: &str, latency: Duration) -> Result<Self> {
        let upstream = endpoint.trim_start_matches("http://").to_owned();
        let act = "could not listen on a loopback port";
        let listener = TcpListener::bind(("127.0.0.1", 0)).context(act)?;
        let endpoint = format!("http://{}", listener.local_addr().context(act)?);
        let requests = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&requests);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = TcpStream::connect(&upstream) else {
                    continue;
                };
                let _ = carry(&client, &server, latency, &counter);
            }
        });
        Ok(Self { endpoint, requests })
    }

    /// Where clients find it.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Requests that came so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

/// Starts the two threads of a connection.
fn carry(
    client: &TcpStream,
    server: &TcpStream,
    latency: Duration,
    requests: &Arc<AtomicU64>,
) -> std::io::Result<()> {
    let answered = Arc::new(AtomicBool::new(true));
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from, to) = (client.try_clone()?, server.try_clone()?);
    let (flag, requests) = (Arc::clone(&answered), Arc::clone(requests));
    thread::spawn(move || {
        pass(&from, &to, || {
            if flag.swap(false, Ordering::SeqCst) {
                requests.fetch_add(1, Ordering::Relaxed);
                thread::sleep(latency);
            }
        });
    });
    let (from, to) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || pass(&from, &to, || answered.store(true, Ordering::SeqCst)));
    Ok(())
}

/// Passes bytes on until one side is done; whatever ends one way ends the connection.
fn pass(mut from: &TcpStream, mut to: &TcpStream, mut before: impl FnMut()) {
    let mut buffer = vec![0; 256 << 10];
    while let Ok(read) = from.read(&mut buffer) {
        if read == 0 {
            break;
        }
        before();
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn each_request_waits_once_and_its_bytes_do_not() {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let endpoint = format!("http://{}", server.local_addr().unwrap());
        thread::spawn(move || {
            let (mut peer, _) = server.accept().unwrap();
            let mut request = [0; 100_000];
            for _ in 0..3 {
                peer.read_exact(&mut request).unwrap();
                peer.write_all(b"answer").unwrap();
            }
        });
        let link = SlowLink::before(&endpoint, Duration::from_millis(50)).unwrap();
        let mut client = TcpStream::connect(link.endpoint().trim_start_matches("http://")).unwrap();
        let start = Instant::now();
        for _ in 0..3 {
            for _ in 0..10 {
                client.write_all(&[1; 10_000]).unwrap();
            }
            let mut answer = [0; 6];
            client.read_exact(&mut answer).unwrap();
        }
        assert!(start.elapsed() >= Duration::from_millis(150));
        assert_eq!(link.requests(), 3);
    }
}
