//! A TCP proxy before a server, an S3 server say, that fails as networks do or is as slow as they are.
//!
//! One fault at a time; [`Proxy::clear`] ends it. Bytes pass at full speed. With a delay, what a client sends first, or
//! first after the server has answered, waits: HTTP/1.1 without pipelining, as S3 clients speak it, has one request at a
//! time on a connection. Threads end with their connections, the listener's with the program.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// 64 KiB: a cut or a stall comes up to so many bytes early.
const BUFFER_BYTES: usize = 64 << 10;

/// How often a connection that stands still looks whether it may go on.
const POLL: Duration = Duration::from_millis(20);

/// What the network does.
#[derive(Debug, Default)]
struct Weather {
    /// Bytes passed in either direction since the last change.
    passed: AtomicU64,
    /// After so many bytes every connection breaks and none is accepted; 0 is never.
    cut_after: AtomicU64,
    /// After so many bytes nothing moves any more, though connections stay; 0 is never.
    stall_after: AtomicU64,
    /// Whether one connection alone stalls.
    stalls_one: AtomicBool,
    /// An access key whose session token has expired.
    expired_key: Mutex<Option<String>>,
    /// Whether the connection of every upload breaks as soon as it begins.
    breaks_uploads: AtomicBool,
    /// What the server says, and what its clients read instead.
    rewritten: Mutex<Vec<(String, String)>>,
    /// Every so many connections one is closed as soon as it is used; 0 is none.
    drop_every: AtomicU64,
    /// How long a request waits.
    delay_microseconds: AtomicU64,
    connections: AtomicU64,
    requests: AtomicU64,
    /// Requests that would overwrite an object.
    overwriting: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
    stopped: AtomicBool,
}

/// See the module.
#[derive(Debug)]
pub struct Proxy {
    endpoint: String,
    weather: Arc<Weather>,
}

impl Proxy {
    /// Begins to pass everything on to `endpoint`, an `http://host:port`, from a free loopback port.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn before(endpoint: &str) -> Result<Self> {
        let upstream = endpoint.trim_start_matches("http://").to_owned();
        let act = "could not listen on a loopback port";
        let listener = TcpListener::bind(("127.0.0.1", 0)).context(act)?;
        let endpoint = format!("http://{}", listener.local_addr().context(act)?);
        let weather = Arc::new(Weather::default());
        let shared = Arc::clone(&weather);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // A connection that could not be passed on is closed, which its client sees.
                let _ = accept(&client, &upstream, &shared);
            }
        });
        Ok(Self { endpoint, weather })
    }

    /// Where clients find it.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Breaks everything after so many more bytes.
    pub fn cut_after(&self, bytes: u64) {
        self.clear();
        self.weather.cut_after.store(bytes, Ordering::SeqCst);
    }

    /// Lets nothing pass after so many more bytes.
    pub fn stall_after(&self, bytes: u64) {
        self.clear();
        self.weather.stall_after.store(bytes, Ordering::SeqCst);
    }

    /// Lets nothing more pass on the connection that carries the byte after so many more; others go on.
    pub fn stall_one_after(&self, bytes: u64) {
        self.clear();
        self.weather.stalls_one.store(true, Ordering::SeqCst);
        self.weather.stall_after.store(bytes, Ordering::SeqCst);
    }

    /// Breaks the connection of every upload as soon as it begins, as a store does that refuses before it has read the bytes:
    /// its answer is lost.
    pub fn break_uploads(&self) {
        self.clear();
        self.weather.breaks_uploads.store(true, Ordering::SeqCst);
    }

    /// Answers requests signed with this access key as a store does when the session token that came with it has expired.
    pub fn expire_key(&self, access_key: &str) {
        self.clear();
        *self.weather.expired_key() = Some(access_key.to_owned());
    }

    /// Puts the second of each pair wherever the server answers the first in one piece, with spaces up to its length, so that
    /// lengths stay right.
    ///
    /// # Panics
    /// When the second is longer.
    pub fn rewrite(&self, pairs: &[(&str, &str)]) {
        self.clear();
        let filled = pairs.iter().map(|(said, read)| {
            assert!(read.len() <= said.len(), "\"{read}\" has no room");
            let read = format!("{read:width$}", width = said.len());
            ((*said).to_owned(), read)
        });
        *self.weather.rewritten() = filled.collect();
    }

    /// Closes one of so many connections when it is first used.
    pub fn drop_every(&self, connections: u64) {
        self.clear();
        self.weather.drop_every.store(connections, Ordering::SeqCst);
    }

    /// Lets every request arrive late, as from another building.
    pub fn delay(&self, latency: Duration) {
        self.clear();
        let microseconds = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let setting = &self.weather.delay_microseconds;
        setting.store(microseconds, Ordering::SeqCst);
    }

    /// Good weather again.
    pub fn clear(&self) {
        self.weather.stopped.store(false, Ordering::SeqCst);
        self.weather.stalls_one.store(false, Ordering::SeqCst);
        self.weather.breaks_uploads.store(false, Ordering::SeqCst);
        *self.weather.expired_key() = None;
        self.weather.rewritten().clear();
        for setting in [
            &self.weather.cut_after,
            &self.weather.stall_after,
            &self.weather.drop_every,
            &self.weather.delay_microseconds,
            &self.weather.passed,
        ] {
            setting.store(0, Ordering::SeqCst);
        }
    }

    /// Bytes passed since the last change.
    #[must_use]
    pub fn passed(&self) -> u64 {
        self.weather.passed.load(Ordering::SeqCst)
    }

    /// Requests that came so far.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.weather.requests.load(Ordering::SeqCst)
    }

    /// Requests of S3 that store an object, and do not say that one which is there stays.
    #[must_use]
    pub fn overwriting(&self) -> u64 {
        self.weather.overwriting.load(Ordering::SeqCst)
    }

    /// Whether the network is cut or stands still.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.weather.stopped.load(Ordering::SeqCst)
    }

    /// Requests that were refused for their key.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.weather.refused.load(Ordering::SeqCst)
    }

    /// Connections that were closed on purpose.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.weather.dropped.load(Ordering::SeqCst)
    }
}

impl Weather {
    fn expired_key(&self) -> MutexGuard<'_, Option<String>> {
        let key = self.expired_key.lock();
        key.unwrap_or_else(PoisonError::into_inner)
    }

    fn rewritten(&self) -> MutexGuard<'_, Vec<(String, String)>> {
        let rewritten = self.rewritten.lock();
        rewritten.unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts what is to be read in the place of what the server said.
    fn rewrite(&self, answer: &mut [u8]) {
        for (said, read) in self.rewritten().iter() {
            let mut rest = &mut *answer;
            let place = |rest: &[u8]| {
                let mut places = rest.windows(said.len());
                places.position(|place| place == said.as_bytes())
            };
            while let Some(at) = place(rest) {
                let (found, behind) = rest[at..].split_at_mut(said.len());
                found.copy_from_slice(read.as_bytes());
                rest = behind;
            }
        }
    }

    /// Whether the request that begins with these bytes is signed with the key that has expired, in a header or in its URL.
    fn refuses(&self, request: &[u8]) -> bool {
        let Some(key) = self.expired_key().clone() else {
            return false;
        };
        let signed = ["/", "%2F"].map(|end| format!("Credential={key}{end}"));
        signed.iter().any(|signed| {
            let mut found = request.windows(signed.len());
            found.any(|at| at == signed.as_bytes())
        })
    }
}

/// Whether the request that begins with these bytes stores an object whatever is there.
fn may_overwrite(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request).to_ascii_lowercase();
    let head = text.split("\r\n\r\n").next().unwrap_or_default();
    let line = head.lines().next().unwrap_or_default();
    // A lock is put on an object, and stores none.
    let stores = line.starts_with("put ") && !line.contains("retention=");
    stores && !head.contains("\r\nif-none-match: *")
}

/// What a store answers to a session token that has expired.
fn refuse(mut client: &TcpStream) -> io::Error {
    let body = "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>";
    let answer = format!(
        "HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    // Closing before the request has come in full would hide the answer.
    let told = client.write_all(answer.as_bytes());
    let told = told.and_then(|()| io::copy(&mut client, &mut io::sink()));
    told.err().unwrap_or(io::ErrorKind::ConnectionReset.into())
}

/// Starts the two threads of a connection, or closes it.
fn accept(client: &TcpStream, upstream: &str, weather: &Arc<Weather>) -> io::Result<()> {
    let nth = weather.connections.fetch_add(1, Ordering::SeqCst) + 1;
    let every = weather.drop_every.load(Ordering::SeqCst);
    let cut =
        weather.stopped.load(Ordering::SeqCst) && weather.cut_after.load(Ordering::SeqCst) > 0;
    if cut || (every > 0 && nth.is_multiple_of(every)) {
        weather.dropped.fetch_add(1, Ordering::SeqCst);
        return Ok(());
    }
    let server = TcpStream::connect(upstream)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let answered = Arc::new(AtomicBool::new(true));
    let (from, to) = (client.try_clone()?, server.try_clone()?);
    let (shared, flag) = (Arc::clone(weather), Arc::clone(&answered));
    thread::spawn(move || {
        carry(&from, &to, &shared, |bytes| {
            if flag.swap(false, Ordering::SeqCst) {
                shared.requests.fetch_add(1, Ordering::SeqCst);
                if may_overwrite(bytes) {
                    shared.overwriting.fetch_add(1, Ordering::SeqCst);
                }
                let delay = shared.delay_microseconds.load(Ordering::SeqCst);
                thread::sleep(Duration::from_micros(delay));
                if bytes.starts_with(b"PUT ") && shared.breaks_uploads.load(Ordering::SeqCst) {
                    return Err(io::ErrorKind::ConnectionReset.into());
                }
                if shared.refuses(bytes) {
                    shared.refused.fetch_add(1, Ordering::SeqCst);
                    return Err(refuse(&from));
                }
            }
            Ok(())
        });
    });
    let (from, to) = (server, client.try_clone()?);
    let shared = Arc::clone(weather);
    thread::spawn(move || {
        carry(&from, &to, &shared, |bytes| {
            shared.rewrite(bytes);
            answered.store(true, Ordering::SeqCst);
            Ok(())
        });
    });
    Ok(())
}

/// Passes bytes on in one direction; whatever ends one way ends the connection.
fn carry(
    from: &TcpStream,
    to: &TcpStream,
    weather: &Weather,
    before: impl FnMut(&mut [u8]) -> io::Result<()>,
) {
    let _ = pass(from, to, weather, before);
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

fn pass(
    mut from: &TcpStream,
    mut to: &TcpStream,
    weather: &Weather,
    mut before: impl FnMut(&mut [u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = from.read(&mut buffer)?;
        let Some(bytes) = buffer.get_mut(..read).filter(|bytes| !bytes.is_empty()) else {
            return Ok(());
        };
        before(bytes)?;
        let length = u64::try_from(read).map_err(io::Error::other)?;
        let passed = weather.passed.fetch_add(length, Ordering::SeqCst) + length;
        let cut = weather.cut_after.load(Ordering::SeqCst);
        if cut > 0 && passed > cut {
            weather.stopped.store(true, Ordering::SeqCst);
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let stall = weather.stall_after.load(Ordering::SeqCst);
        let others_go_on = weather.stalls_one.load(Ordering::SeqCst);
        let is_first = || !weather.stopped.swap(true, Ordering::SeqCst);
        if stall > 0 && passed > stall && (is_first() || !others_go_on) {
            // Kept open until the client is gone or the test is over.
            while weather.stopped.load(Ordering::SeqCst) {
                thread::sleep(POLL);
            }
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        to.write_all(bytes)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// A server that answers so many requests of 100 kB each.
    fn answering(requests: usize) -> String {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let endpoint = format!("http://{}", server.local_addr().unwrap());
        thread::spawn(move || {
            let (mut peer, _) = server.accept().unwrap();
            let mut request = [0; 100_000];
            for _ in 0..requests {
                peer.read_exact(&mut request).unwrap();
                peer.write_all(b"answer").unwrap();
            }
        });
        endpoint
    }

    fn client_of(proxy: &Proxy) -> TcpStream {
        TcpStream::connect(proxy.endpoint().trim_start_matches("http://")).unwrap()
    }

    fn ask(client: &mut TcpStream) -> io::Result<()> {
        for _ in 0..10 {
            client.write_all(&[1; 10_000])?;
        }
        let mut answer = [0; 6];
        client.read_exact(&mut answer)
    }

    #[test]
    fn each_request_waits_once_and_its_bytes_do_not() {
        let proxy = Proxy::before(&answering(3)).unwrap();
        proxy.delay(Duration::from_millis(50));
        let mut client = client_of(&proxy);
        let start = Instant::now();
        for _ in 0..3 {
            ask(&mut client).unwrap();
        }
        assert!(start.elapsed() >= Duration::from_millis(150));
        assert_eq!(proxy.requests(), 3);
        assert_eq!(proxy.passed(), 3 * 100_006);
    }

    #[test]
    fn an_answer_is_rewritten_to_its_length() {
        let proxy = Proxy::before(&answering(2)).unwrap();
        let mut client = client_of(&proxy);
        for (read, expected) in [("s", b"ans  r"), ("SWE", b"anSWEr")] {
            proxy.rewrite(&[("swe", read)]);
            client.write_all(&[1; 100_000]).unwrap();
            let mut answer = [0; 6];
            client.read_exact(&mut answer).unwrap();
            assert_eq!(&answer, expected);
        }
    }

    #[test]
    fn a_key_has_expired_in_a_header_and_in_a_url() {
        let proxy = Proxy::before("http://127.0.0.1:1").unwrap();
        proxy.expire_key("KEY");
        for (request, refused) in [
            ("GET /b\r\nauthorization: AWS4 Credential=KEY/2026", true),
            ("GET /b?versions&X-Amz-Credential=KEY%2F2026", true),
            ("GET /b?X-Amz-Credential=KEYS%2F2026", false),
        ] {
            assert_eq!(
                proxy.weather.refuses(request.as_bytes()),
                refused,
                "{request}"
            );
        }
    }

    #[test]
    fn a_cut_breaks_what_is_there_and_lets_nobody_in() {
        let proxy = Proxy::before(&answering(2)).unwrap();
        let mut client = client_of(&proxy);
        ask(&mut client).unwrap();
        assert!(!proxy.has_failed());
        proxy.cut_after(50_000);
        assert!(ask(&mut client).is_err());
        assert!(proxy.has_failed());
        assert!(ask(&mut client_of(&proxy)).is_err());
        assert_eq!(proxy.dropped(), 1);
    }
}
