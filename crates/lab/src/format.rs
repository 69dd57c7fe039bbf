//! Numbers as people read them.
//!
//! A value gets as many digits as its uncertainty justifies, and all cells of
//! a row share unit and decimals. Zero and missing differ: "0" and "–".

use crate::number::whole;

/// What stands where nothing was measured.
pub const MISSING: &str = "–";

/// What a number measures; decides its units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Things per second, with k and M.
    PerSecond,
    /// Seconds; printed as µs, ms, s or min:s.
    Seconds,
    /// Bytes; printed with binary units.
    Bytes,
    /// Bytes per second, binary units.
    BytesPerSecond,
    /// A bare count.
    Count,
    /// A ratio or a share.
    Ratio,
}

/// A scale a row is printed in: divide, then append the suffix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Scale {
    /// Values are divided by this.
    pub divisor: f64,
    /// What follows each number.
    pub suffix: &'static str,
}

impl Unit {
    /// The scale for a row whose largest cell is `largest`.
    #[must_use]
    pub fn scale(self, largest: f64) -> Scale {
        let steps: &[(f64, &'static str)] = match self {
            Self::PerSecond | Self::Count => &[(1e6, "M"), (1e4, "k")],
            Self::Seconds => &[(1.0, " s"), (1e-3, " ms"), (1e-6, " µs")],
            Self::Bytes => &[
                (1_099_511_627_776.0, " TiB"),
                (1_073_741_824.0, " GiB"),
                (1_048_576.0, " MiB"),
                (1024.0, " kiB"),
            ],
            Self::BytesPerSecond => &[
                (1_073_741_824.0, " GiB/s"),
                (1_048_576.0, " MiB/s"),
                (1024.0, " kiB/s"),
            ],
            Self::Ratio => &[],
        };
        let plain = match self {
            Self::Bytes => " B",
            Self::BytesPerSecond => " B/s",
            Self::Seconds => " µs",
            Self::PerSecond | Self::Count | Self::Ratio => "",
        };
        let divisor_floor = if self == Self::Seconds { 1e-6 } else { 1.0 };
        steps
            .iter()
            .find(|(divisor, _)| largest.abs() >= self.threshold(*divisor))
            .map_or(
                Scale {
                    divisor: divisor_floor,
                    suffix: plain,
                },
                |(divisor, suffix)| Scale {
                    divisor: if *suffix == "k" { 1e3 } else { *divisor },
                    suffix,
                },
            )
    }

    /// Just under the divisor, so that 0.9999 s is not printed as 1000.0 ms.
    fn threshold(self, divisor: f64) -> f64 {
        match self {
            Self::Bytes | Self::BytesPerSecond => divisor,
            _ => divisor * 0.999_5,
        }
    }
}

/// Decimals that a half-width justifies: to its first significant digit, to
/// two if that digit is 1. Both in the row's scale.
#[must_use]
pub fn decimals(half_width: f64) -> usize {
    if !half_width.is_finite() || half_width <= 0.0 {
        return 3;
    }
    let mut exponent = half_width.log10().floor();
    // 0.0996 rounds up to 0.1, whose first digit is 1: look at the rounded value.
    let leading = half_width / 10f64.powf(exponent);
    let digits = if leading < 1.95 {
        1.0
    } else if leading >= 9.5 {
        exponent += 1.0;
        1.0
    } else {
        0.0
    };
    whole((digits - exponent).clamp(0.0, 6.0))
}

/// Decimals for a value whose uncertainty is unknown: three significant digits.
#[must_use]
pub(crate) fn three_digits(value: f64) -> usize {
    if !value.is_finite() || value == 0.0 {
        return 0;
    }
    whole((2.0 - value.abs().log10().floor()).clamp(0.0, 6.0))
}

/// One value alone, in the unit that suits it, with three significant digits.
#[must_use]
pub fn value(value: f64, unit: Unit) -> String {
    if !value.is_finite() {
        return MISSING.to_owned();
    }
    if value == 0.0 && unit != Unit::Ratio {
        let suffix = match unit {
            Unit::Seconds => " s",
            Unit::Bytes => " B",
            Unit::BytesPerSecond => " B/s",
            _ => "",
        };
        return format!("0{suffix}");
    }
    let scale = unit.scale(value);
    let scaled = value / scale.divisor;
    format!("{scaled:.*}{}", three_digits(scaled), scale.suffix)
}

/// A ratio with its interval's precision; without an interval three decimals,
/// but never "1.000" for what is not 1.
#[must_use]
pub fn ratio(value: f64, half_width: Option<f64>) -> String {
    if !value.is_finite() {
        return MISSING.to_owned();
    }
    let wanted = half_width.map_or(3, |half| decimals(half).max(2)).min(4);
    let places = if value >= 10.0 { wanted.min(1) } else { wanted };
    let text = format!("{value:.places$}");
    let is_one = text.trim_end_matches('0').trim_end_matches('.') == "1";
    if is_one && half_width.is_none() && (value - 1.0).abs() > 1e-9 && places < 5 {
        return format!("{value:.*}", three_digits(value - 1.0).clamp(3, 5));
    }
    text
}

/// A share as per cent: "1 %", "0.5 %", "12 %".
#[must_use]
pub fn percent(share: f64) -> String {
    if !share.is_finite() {
        return MISSING.to_owned();
    }
    let value = share * 100.0;
    let places = if value.abs() >= 9.95 || (value - value.round()).abs() < 1e-9 {
        0
    } else if value.abs() >= 0.095 {
        1
    } else {
        2
    };
    format!("{value:.places$} %")
}

/// A p-value: three decimals, or "< 0.001".
#[must_use]
pub fn p_value(p: f64) -> String {
    if p < 0.001 {
        "< 0.001".to_owned()
    } else {
        format!("{p:.3}")
    }
}

/// Seconds as minutes and seconds, as stage stamps are read.
#[must_use]
pub fn clock(seconds: f64) -> String {
    let total = whole(seconds.round());
    format!("{}:{:02}", total / 60, total % 60)
}

#[cfg(test)]
mod tests {
    use super::{Unit, clock, decimals, p_value, percent, ratio, value};

    #[test]
    fn values_have_three_digits_and_the_unit_that_suits_them() {
        for (given, unit, expected) in [
            (0.0, Unit::Seconds, "0 s"),
            (0.000_000_9, Unit::Seconds, "0.900 µs"),
            (0.000_017, Unit::Seconds, "17.0 µs"),
            (0.000_999, Unit::Seconds, "999 µs"),
            (0.001_234, Unit::Seconds, "1.23 ms"),
            (0.1, Unit::Seconds, "100 ms"),
            (1.0, Unit::Seconds, "1.00 s"),
            (59.94, Unit::Seconds, "59.9 s"),
            (0.0, Unit::Bytes, "0 B"),
            (512.0, Unit::Bytes, "512 B"),
            (1024.0, Unit::Bytes, "1.00 kiB"),
            (1_048_576.0, Unit::Bytes, "1.00 MiB"),
            (1_610_612_736.0, Unit::Bytes, "1.50 GiB"),
            (104_857_600.0, Unit::BytesPerSecond, "100 MiB/s"),
            (110_873.0, Unit::PerSecond, "111k"),
            (999.0, Unit::PerSecond, "999"),
            (f64::NAN, Unit::Seconds, "–"),
            (f64::INFINITY, Unit::Bytes, "–"),
        ] {
            assert_eq!(value(given, unit), expected, "{given} {unit:?}");
        }
    }

    #[test]
    fn a_ratio_has_the_digits_of_its_interval_and_is_never_one_by_rounding() {
        for (given, half, expected) in [
            (1.0, None, "1.000"),
            (0.9995, None, "0.99950"),
            (1.0004, None, "1.00040"),
            (1.2, None, "1.200"),
            (12.34, None, "12.3"),
            (1.004, Some(0.014), "1.004"),
            (1.07, Some(0.22), "1.07"),
            (0.973, Some(0.005), "0.973"),
            (0.97349, Some(0.000_2), "0.9735"),
            (0.48, Some(1e-9), "0.4800"),
            (123.4, Some(5.0), "123.4"),
            (f64::NAN, None, "–"),
        ] {
            assert_eq!(ratio(given, half), expected, "{given} {half:?}");
        }
    }

    #[test]
    fn a_half_width_justifies_its_first_digit_or_two_after_a_one() {
        for (half, expected) in [
            (2_100.0, 0),
            (0.5, 1),
            (0.1, 2),
            (0.19, 2),
            (0.02, 2),
            (0.014, 3),
            (0.0996, 2),
            (0.003, 3),
            (0.0, 3),
            (f64::NAN, 3),
        ] {
            assert_eq!(decimals(half), expected, "{half}");
        }
    }

    #[test]
    fn shares_probabilities_and_clocks_read_naturally() {
        for (share, expected) in [
            (0.01, "1 %"),
            (0.005, "0.5 %"),
            (0.1234, "12 %"),
            (0.0004, "0.04 %"),
            (0.0, "0 %"),
            (1.0, "100 %"),
        ] {
            assert_eq!(percent(share), expected, "{share}");
        }
        assert_eq!(p_value(0.000_4), "< 0.001");
        assert_eq!(p_value(0.0313), "0.031");
        assert_eq!(clock(975.0), "16:15");
    }
}
