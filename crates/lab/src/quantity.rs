//! Durations, shares and sizes as people type them.

use std::time::Duration;

use anyhow::{Context, Result, bail};

/// `90s`, `20m`, `1h`, or bare seconds.
///
/// # Errors
/// Fails for anything else.
pub fn duration(text: &str) -> Result<Duration> {
    let (number, factor) = match text.trim() {
        t if t.ends_with("ms") => (&t[..t.len() - 2], 0.001),
        t if t.ends_with('s') => (&t[..t.len() - 1], 1.0),
        t if t.ends_with('m') => (&t[..t.len() - 1], 60.0),
        t if t.ends_with('h') => (&t[..t.len() - 1], 3600.0),
        t => (t, 1.0),
    };
    let value: f64 = number
        .trim()
        .parse()
        .with_context(|| format!("could not parse \"{text}\" as a duration: try 90s, 20m or 1h"))?;
    if !value.is_finite() || value < 0.0 {
        bail!("could not use \"{text}\" as a duration: it must not be negative");
    }
    Ok(Duration::from_secs_f64(value * factor))
}

/// `1%` or `0.01`.
///
/// # Errors
/// Fails for anything else, and for what is not between 0 and 1.
pub fn share(text: &str) -> Result<f64> {
    let (number, factor) = text
        .trim()
        .strip_suffix('%')
        .map_or((text.trim(), 1.0), |number| (number.trim(), 0.01));
    let value = number
        .parse::<f64>()
        .with_context(|| format!("could not parse \"{text}\" as a share: try 1% or 0.01"))?
        * factor;
    if !(0.0..=1.0).contains(&value) {
        bail!("could not use \"{text}\": a share lies between 0 and 100%");
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::{duration, share};

    #[test]
    fn durations_and_shares_are_read() {
        assert!((duration("20m").unwrap().as_secs_f64() - 1200.0).abs() < 1e-9);
        assert!((duration("1.5h").unwrap().as_secs_f64() - 5400.0).abs() < 1e-9);
        assert!((duration("250ms").unwrap().as_secs_f64() - 0.25).abs() < 1e-9);
        assert!((duration("7").unwrap().as_secs_f64() - 7.0).abs() < 1e-9);
        assert!((share("1%").unwrap() - 0.01).abs() < 1e-12);
        assert!((share("0.5").unwrap() - 0.5).abs() < 1e-12);
        for wrong in ["", "x", "-1s", "m"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        for wrong in ["", "x%", "101%", "-1%"] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }
}
