//! A TCP proxy before an S3 server that can be told to fail as networks do.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// What the network does.
#[derive(Debug, Default)]
struct Weather {
    /// Bytes passed in either direction since the last change.
    passed: AtomicU64,
    /// After so many bytes every connection breaks and none is accepted; 0 is never.
    cut_after: AtomicU64,
    /// After so many bytes nothing moves any more, though connections stay; 0 is never.
    stall_after: AtomicU64,
    /// Every so many connections one is closed as soon as it is used; 0 is none.
    drop_every: AtomicU64,
    connections: AtomicU64,
    dropped: AtomicU64,
    stopped: AtomicBool,
}

/// See the module. Threads end with the connections; the listener's with the program.
#[derive(Debug)]
pub struct Proxy {
    endpoint: String,
    weather: Arc<Weather>,
}

impl Proxy {
    /// Begins to pass everything on to `endpoint`, an `http://host:port`.
    pub fn before(endpoint: &str) -> Self {
        let upstream = endpoint.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let weather = Arc::new(Weather::default());
        let shared = Arc::clone(&weather);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                accept(client, &upstream, &shared);
            }
        });
        Self { endpoint, weather }
    }

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

    /// Closes one of so many connections when it is first used.
    pub fn drop_every(&self, connections: u64) {
        self.clear();
        self.weather.drop_every.store(connections, Ordering::SeqCst);
    }

    /// Good weather again.
    pub fn clear(&self) {
        self.weather.stopped.store(false, Ordering::SeqCst);
        for setting in [
            &self.weather.cut_after,
            &self.weather.stall_after,
            &self.weather.drop_every,
            &self.weather.passed,
        ] {
            setting.store(0, Ordering::SeqCst);
        }
    }

    /// Bytes passed since the last change.
    pub fn passed(&self) -> u64 {
        self.weather.passed.load(Ordering::SeqCst)
    }

    /// Whether the network is cut or stands still.
    pub fn has_failed(&self) -> bool {
        self.weather.stopped.load(Ordering::SeqCst)
    }

    /// Connections that were closed on purpose.
    pub fn dropped(&self) -> u64 {
        self.weather.dropped.load(Ordering::SeqCst)
    }
}

fn accept(client: TcpStream, upstream: &str, weather: &Arc<Weather>) {
    let nth = weather.connections.fetch_add(1, Ordering::SeqCst) + 1;
    let every = weather.drop_every.load(Ordering::SeqCst);
    let cut =
        weather.stopped.load(Ordering::SeqCst) && weather.cut_after.load(Ordering::SeqCst) > 0;
    if cut || (every > 0 && nth.is_multiple_of(every)) {
        weather.dropped.fetch_add(1, Ordering::SeqCst);
        return;
    }
    let Ok(server) = TcpStream::connect(upstream) else {
        return;
    };
    let ways = [
        (client.try_clone(), server.try_clone()),
        (server.try_clone(), client.try_clone()),
    ];
    for (from, to) in ways {
        let (Ok(from), Ok(to)) = (from, to) else {
            return;
        };
        let weather = Arc::clone(weather);
        thread::spawn(move || {
            // Whatever ends one way ends the connection.
            let _ = pass(&from, &to, &weather);
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

fn pass(mut from: &TcpStream, mut to: &TcpStream, weather: &Weather) -> io::Result<()> {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok(());
        }
        let length = u64::try_from(read).unwrap();
        let passed = weather.passed.fetch_add(length, Ordering::SeqCst) + length;
        let cut = weather.cut_after.load(Ordering::SeqCst);
        if cut > 0 && passed > cut {
            weather.stopped.store(true, Ordering::SeqCst);
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        let stall = weather.stall_after.load(Ordering::SeqCst);
        if stall > 0 && passed > stall {
            weather.stopped.store(true, Ordering::SeqCst);
            // Kept open until the client is gone or the test is over.
            while weather.stopped.load(Ordering::SeqCst) {
                thread::sleep(std::time::Duration::from_millis(20));
            }
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        to.write_all(&buffer[..read])?;
    }
}
