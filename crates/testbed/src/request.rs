//! One HTTP request to a server on this machine, signed by who makes it.

use std::thread;

use anyhow::{Result, anyhow, bail};
use object_store::ClientOptions;
use object_store::client::{HttpConnector, HttpRequest, ReqwestConnector};
use tokio::runtime;

/// What the server said to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The body.
    pub body: String,
}

impl Answer {
    pub(crate) fn must_succeed(&self) -> Result<()> {
        match self.status {
            200..300 => Ok(()),
            status => bail!("the server answered with {status}: {}", self.body),
        }
    }
}

/// Sends it. Callers may be in a runtime already.
pub(crate) fn send(request: HttpRequest) -> Result<Answer> {
    let sent = thread::spawn(move || send_here(request)).join();
    sent.map_err(|_| anyhow!("the request panicked"))?
}

fn send_here(request: HttpRequest) -> Result<Answer> {
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let options = ClientOptions::new().with_allow_http(true);
        let client = ReqwestConnector::default().connect(&options)?;
        let (head, body) = client.execute(request).await?.into_parts();
        let body = body.bytes().await?;
        Ok(Answer {
            status: head.status.as_u16(),
            body: String::from_utf8_lossy(&body).into_owned(),
        })
    })
}
