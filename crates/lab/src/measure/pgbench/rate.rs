//! How much an open loop offers.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, bail};

use crate::quantity;

/// Transactions that are due, whatever the server does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    /// So many per second.
    PerSecond(f64),
    /// A share of the capacity: of what the slowest arm does in a closed loop,
    /// which is measured first.
    OfCapacity(f64),
}

impl Rate {
    /// Transactions per second where a closed loop does `capacity` of them.
    #[must_use]
    pub fn at(self, capacity: f64) -> f64 {
        match self {
            Self::PerSecond(rate) => rate,
            Self::OfCapacity(share) => (capacity * share).floor().max(1.0),
        }
    }
}

impl FromStr for Rate {
    type Err = anyhow::Error;

    /// `500`, or `60%`.
    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        let (rate, number) = if text.ends_with('%') {
            let share = quantity::share(text)?;
            (Self::OfCapacity(share), share)
        } else {
            let number = text
                .parse()
                .with_context(|| format!("could not parse \"{text}\" as a rate: try 500 or 60%"))?;
            (Self::PerSecond(number), number)
        };
        if !number.is_finite() || number <= 0.0 {
            bail!("could not use \"{text}\" as a rate: it must be more than nothing");
        }
        Ok(rate)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PerSecond(rate) => write!(formatter, "{rate}"),
            Self::OfCapacity(share) => write!(formatter, "{}%", share * 100.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Rate;

    #[test]
    fn a_rate_is_a_number_or_a_share_of_the_capacity() {
        let at_thousand = |text: &str| text.parse::<Rate>().map(|rate| rate.at(1000.5));
        assert_eq!(at_thousand("500").unwrap().to_string(), "500");
        assert_eq!(at_thousand("0.5").unwrap().to_string(), "0.5");
        assert_eq!(at_thousand("60%").unwrap().to_string(), "600");
        assert_eq!(at_thousand("0.01%").unwrap().to_string(), "1");
        for wrong in ["", "x", "0", "-5", "0%", "120%", "inf", "%"] {
            assert!(at_thousand(wrong).is_err(), "{wrong}");
        }
        let read_again = |text: &str| text.parse::<Rate>().unwrap().to_string();
        assert_eq!(read_again("60%"), "60%");
        assert_eq!(read_again("512.5"), "512.5");
    }
}
