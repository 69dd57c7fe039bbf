//! How long failures that may pass are retried, and with which pauses.

use std::time::{Duration, Instant};

/// How long failures that may pass are retried.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Before the first answer: a repository that was never reached is a wrong
    /// setting more often than an outage.
    pub(super) first: Duration,
    /// After it.
    pub(super) later: Duration,
}

/// The pauses of one operation's retries.
pub(super) struct Retries {
    limit: Duration,
    tries: u32,
    /// A connection that stalls may take longer to fail than patience lasts: that counts from here.
    first_failure: Option<Instant>,
    pause: Duration,
}

impl Retries {
    const FIRST_PAUSE: Duration = Duration::from_millis(100);
    const LONGEST_PAUSE: Duration = Duration::from_secs(5);
    /// However long each of them took.
    const LEAST_TRIES: u32 = 3;

    pub(super) fn new(limit: Duration) -> Self {
        Self {
            limit,
            tries: 0,
            first_failure: None,
            pause: Self::FIRST_PAUSE,
        }
    }

    /// After a failure: waits and answers true, or answers false when patience has run out.
    pub(super) async fn wait(&mut self) -> bool {
        self.tries += 1;
        let first_failure = *self.first_failure.get_or_insert_with(Instant::now);
        // Half to whole of the pause, so that workers that failed together do not return together.
        let pause = self.pause.mul_f64(0.5 + rand::random::<f64>() / 2.0);
        if self.tries >= Self::LEAST_TRIES && first_failure.elapsed() + pause > self.limit {
            return false;
        }
        tokio::time::sleep(pause).await;
        self.pause = (self.pause * 2).min(Self::LONGEST_PAUSE);
        true
    }
}
