//! Sentences a user gives to be checked: `NAME OP NUMBER`.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

use crate::measure::result::Claim;

/// How a value is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
}

/// `pg_stat_io.bulkwrite.writes > 0`, `tps < 0.98`.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectation {
    /// The name compared.
    pub name: String,
    operator: Operator,
    number: f64,
    text: String,
}

/// What a gate says of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gate {
    /// The condition is certainly false.
    Passed,
    /// The condition is certainly true.
    Failed,
    /// Neither is proven.
    Unclear,
}

impl Expectation {
    /// Parses a sentence.
    ///
    /// # Errors
    /// Fails when it is not `NAME OP NUMBER`.
    pub fn parse(text: &str) -> Result<Self> {
        let operators = [
            ("<=", Operator::LessOrEqual),
            (">=", Operator::GreaterOrEqual),
            ("==", Operator::Equal),
            ("<", Operator::Less),
            (">", Operator::Greater),
            ("=", Operator::Equal),
        ];
        for (symbol, operator) in operators {
            let Some((name, number)) = text.split_once(symbol) else {
                continue;
            };
            let number = number.trim().parse().with_context(|| {
                format!(
                    "could not parse \"{text}\": \"{}\" is no number",
                    number.trim()
                )
            })?;
            if name.trim().is_empty() {
                break;
            }
            return Ok(Self {
                name: name.trim().to_owned(),
                operator,
                number,
                text: text.trim().to_owned(),
            });
        }
        bail!("could not parse \"{text}\": expected NAME, one of < <= > >= =, and a number")
    }

    /// The sentence as given.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it holds of these values; absent when the name is not among them.
    #[must_use]
    pub fn holds(&self, values: &BTreeMap<String, f64>) -> Option<bool> {
        values.get(&self.name).map(|value| self.compare(*value))
    }

    fn compare(&self, value: f64) -> bool {
        match self.operator {
            Operator::Less => value < self.number,
            Operator::LessOrEqual => value <= self.number,
            Operator::Greater => value > self.number,
            Operator::GreaterOrEqual => value >= self.number,
            Operator::Equal => (value - self.number).abs() < f64::EPSILON,
        }
    }

    /// The same of the ratio of an arm to the base, as a bound that it may reach.
    ///
    /// # Errors
    /// When it is no bound.
    pub fn claim(&self, arm: usize) -> Result<Claim> {
        match self.operator {
            Operator::Less | Operator::LessOrEqual => {
                Ok(Claim::at_most(&self.name, arm, self.number))
            }
            Operator::Greater | Operator::GreaterOrEqual => {
                Ok(Claim::at_least(&self.name, arm, self.number))
            }
            Operator::Equal => bail!("could not use \"{}\" as a bound: use <= or >=", self.text),
        }
    }

    /// What must hold of an arm where this is the condition under which it fails.
    ///
    /// # Errors
    /// When it is no bound.
    pub fn refuted(&self, arm: usize) -> Result<Claim> {
        let claim = self.claim(arm)?;
        Ok(Claim {
            at_least: claim.at_most,
            at_most: claim.at_least,
            ..claim
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Expectation;
    use crate::measure::result::Claim;
    use std::collections::BTreeMap;

    #[test]
    fn sentences_hold_or_not() {
        let values = BTreeMap::from([("a.b".to_owned(), 3.0)]);
        let holds = |text: &str| Expectation::parse(text).unwrap().holds(&values);
        assert_eq!(holds("a.b > 0"), Some(true));
        assert_eq!(holds("a.b <= 2"), Some(false));
        assert_eq!(holds("a.b=3"), Some(true));
        assert_eq!(holds("other > 0"), None);
        let claim = Expectation::parse("tps >= 0.97").unwrap().claim(2);
        assert_eq!(claim.unwrap(), Claim::at_least("tps", 2, 0.97));
        let claim = Expectation::parse("p99 < 1.1").unwrap().claim(1);
        assert_eq!(claim.unwrap(), Claim::at_most("p99", 1, 1.1));
        assert!(Expectation::parse("tps = 1").unwrap().claim(1).is_err());
        for wrong in ["", "a", "a >", "> 1", "a > b"] {
            assert!(Expectation::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_passes_a_gate_is_the_opposite_of_its_condition() {
        let refuted = |text: &str| Expectation::parse(text).unwrap().refuted(1);
        assert_eq!(
            refuted("tps < 0.98").unwrap(),
            Claim::at_least("tps", 1, 0.98)
        );
        assert_eq!(refuted("p99 > 1.1").unwrap(), Claim::at_most("p99", 1, 1.1));
        assert!(refuted("tps = 1").is_err());
    }
}
