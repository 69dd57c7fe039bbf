//! Values of options, as people write them.

pub(crate) fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err("expected a number from 1 on".to_owned()),
    }
}

pub(crate) fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// `0.5%` or `0.5` as millionths: 5000.
pub(crate) fn parse_percent(text: &str) -> Result<u32, String> {
    let wrong = || "expected a percentage such as 1% or 0.05, at most 100".to_owned();
    let number = text.strip_suffix('%').unwrap_or(text);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if fraction.is_empty() || fraction.len() > 4 {
        return Err(wrong());
    }
    let digits = format!("{whole}{fraction:0<4}");
    if !digits.bytes().all(|digit| digit.is_ascii_digit()) || whole.is_empty() {
        return Err(wrong());
    }
    digits
        .parse()
        .ok()
        .filter(|share| (1..=1_000_000).contains(share))
        .ok_or_else(wrong)
}

/// `64M` and the like: K, M, G, T are powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = text[digits.len()..]
        .trim()
        .trim_end_matches(['B', 'b'])
        .trim_end_matches('i');
    let shift = match unit.to_ascii_uppercase().as_str() {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(format!("unknown unit \"{unit}\": use K, M, G or T")),
    };
    let number: u64 = digits
        .parse()
        .map_err(|_| "expected a number such as 64M".to_owned())?;
    number
        .checked_mul(1 << shift)
        .filter(|&n| n > 0)
        .ok_or_else(|| "out of range".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(parse_size("64M"), Ok(64 << 20));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert_eq!(parse_size("4096"), Ok(4096));
        assert!(parse_size("0").is_err());
        assert!(parse_size("5X").is_err());
        assert!(parse_size("").is_err());
        assert!(parse_size("99999999999T").is_err());
    }

    #[test]
    fn percentages_are_exact_to_a_millionth() {
        assert_eq!(parse_percent("1%"), Ok(10_000));
        assert_eq!(parse_percent("0.0001"), Ok(1));
        assert_eq!(parse_percent("12.5%"), Ok(125_000));
        assert_eq!(parse_percent("100"), Ok(1_000_000));
        for wrong in ["", "0", "%", "101%", "-1", "1.00001", "a", ".5", "5."] {
            assert!(parse_percent(wrong).is_err(), "{wrong}");
        }
    }
}
