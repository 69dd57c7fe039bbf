//! A server of HTTP that answers as a test tells it, and remembers what it was asked.
//!
//! It is for what no real server shows: which headers a request had, and where it went. Its threads end with the program.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Context, Result};

/// One request that came, without its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Such as `GET`.
    pub method: String,
    /// The path, and the query.
    pub target: String,
    /// By names in lower case.
    pub headers: BTreeMap<String, String>,
}

impl Asked {
    /// The range of bytes that it asks for, as first and last.
    #[must_use]
    pub fn range(&self) -> Option<(usize, usize)> {
        let range = self.headers.get("range")?.strip_prefix("bytes=")?;
        let (first, last) = range.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    }
}

/// What it is answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// Headers; the length is added.
    pub headers: Vec<(&'static str, String)>,
    /// The body, which is not sent to who asks for headers alone.
    pub body: Vec<u8>,
}

/// See the module.
pub struct Recorder {
    endpoint: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder")
            .field("endpoint", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl Recorder {
    /// Begins to answer on a free loopback port.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start(reply: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Result<Self> {
        let act = "could not listen on a loopback port";
        let listener = TcpListener::bind(("127.0.0.1", 0)).context(act)?;
        let endpoint = format!("http://{}", listener.local_addr().context(act)?);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (noted, reply) = (Arc::clone(&asked), Arc::new(reply));
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (noted, reply) = (Arc::clone(&noted), Arc::clone(&reply));
                // Whoever goes away has had enough.
                thread::spawn(move || answer_all(&client, &noted, &*reply));
            }
        });
        Ok(Self { endpoint, asked })
    }

    /// Where clients find it.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// What it was asked so far, in order.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        held(&self.asked).clone()
    }
}

fn held(asked: &Mutex<Vec<Asked>>) -> MutexGuard<'_, Vec<Asked>> {
    asked.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer_all(
    mut client: &TcpStream,
    noted: &Mutex<Vec<Asked>>,
    reply: &dyn Fn(&Asked) -> Reply,
) -> io::Result<()> {
    let mut reader = BufReader::new(client);
    while let Some(asked) = read(&mut reader)? {
        let reply = reply(&asked);
        let is_head = asked.method == "HEAD";
        held(noted).push(asked);
        let mut head = format!("HTTP/1.1 {} as told\r\n", reply.status);
        for (name, value) in &reply.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", reply.body.len()));
        client.write_all(head.as_bytes())?;
        if !is_head {
            client.write_all(&reply.body)?;
        }
    }
    Ok(())
}

/// The next request; nothing when there is none any more.
fn read(reader: &mut impl BufRead) -> io::Result<Option<Asked>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next(), words.next());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(": ") else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length");
    let length = length.and_then(|length| length.parse().ok()).unwrap_or(0);
    io::copy(&mut reader.take(length), &mut io::sink())?;
    Ok(Some(Asked {
        method: method.unwrap_or_default(),
        target: target.unwrap_or_default(),
        headers,
    }))
}
