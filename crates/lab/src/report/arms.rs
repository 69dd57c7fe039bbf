//! What was compared: what each arm is said to be, and what was found to differ between them.

use crate::measure::environment::{self, Difference, Environment};
use crate::measure::result::Experiment;

/// What an arm has otherwise than the first one of which anything was captured.
pub(super) struct Apart<'a> {
    pub(super) base: &'a str,
    pub(super) name: &'a str,
    pub(super) facts: Vec<Difference>,
}

impl Apart<'_> {
    /// What differs, or that nothing does.
    pub(super) fn words(&self) -> String {
        let (base, name) = (self.base, self.name);
        match self.facts.is_empty() {
            true => format!("{name} differs from {base} in nothing that was captured"),
            false => format!("What differs between {base} and {name}"),
        }
    }
}

/// What the report calls the section.
pub(super) fn title(experiment: &Experiment) -> &'static str {
    match experiment.arms.len() {
        0 | 1 => "What was measured",
        _ => "What was compared",
    }
}

/// The environments that were captured, each with its arm's name.
pub(super) fn captured(experiment: &Experiment) -> Vec<(&str, &Environment)> {
    let arms = experiment.arms.iter();
    arms.filter_map(|arm| Some((arm.name.as_str(), arm.environment.as_ref()?)))
        .collect()
}

/// What differs between the first captured environment and each further one.
pub(super) fn apart(experiment: &Experiment) -> Vec<Apart<'_>> {
    let captured = captured(experiment);
    let Some(((base, first), rest)) = captured.split_first() else {
        return Vec::new();
    };
    rest.iter()
        .map(|(name, second)| Apart {
            base,
            name,
            facts: environment::diff(first, second)
                .into_iter()
                .filter(Difference::is_of_the_server)
                .collect(),
        })
        .collect()
}

/// Whose environment was captured, where that is not every arm's: of the others nothing is known, unless the same server
/// served them.
pub(super) fn only(experiment: &Experiment) -> Option<String> {
    let captured = captured(experiment);
    let is_part = !captured.is_empty() && captured.len() < experiment.arms.len();
    if let ([(_, server)], true) = (&captured[..], is_part)
        && let Some(served) = server.get(environment::SERVED)
    {
        return Some(format!(
            "One server, whose environment was captured, served {served}."
        ));
    }
    let names: Vec<&str> = captured.iter().map(|(name, _)| *name).collect();
    is_part.then(|| {
        format!(
            "An environment was captured of {} only.",
            names.join(" and of ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::result::Arm;

    fn experiment(fsync: &[Option<&str>]) -> Experiment {
        let arm = |fsync: &Option<&str>| Arm {
            name: format!("fsync {}", fsync.unwrap_or("unknown")),
            description: String::new(),
            environment: fsync.map(|fsync| {
                let mut environment = Environment::default();
                environment.found("fsync", fsync);
                environment.found("contents.tables", fsync);
                environment
            }),
        };
        Experiment {
            arms: fsync.iter().map(arm).collect(),
            ..Experiment::default()
        }
    }

    #[test]
    fn only_captured_arms_are_said_to_differ_or_not() {
        let all = experiment(&[Some("on"), Some("off"), Some("on")]);
        let words: Vec<(String, usize)> = apart(&all)
            .iter()
            .map(|apart| (apart.words(), apart.facts.len()))
            .collect();
        let same = "fsync on differs from fsync on in nothing that was captured";
        let differs = "What differs between fsync on and fsync off";
        assert_eq!(words, [(differs.to_owned(), 1), (same.to_owned(), 0)]);
        assert_eq!(only(&all), None);

        let one = experiment(&[Some("on"), None]);
        assert!(apart(&one).is_empty());
        let only = only(&one).unwrap();
        assert_eq!(only, "An environment was captured of fsync on only.");
        let mut shared = one;
        let server = shared.arms[0].environment.as_mut().unwrap();
        server.found(environment::SERVED, "all arms");
        let only = super::only(&shared).unwrap();
        assert_eq!(
            only,
            "One server, whose environment was captured, served all arms."
        );
        // The base need not be the one that is known.
        let later = experiment(&[None, Some("on"), Some("off")]);
        assert_eq!(apart(&later)[0].base, "fsync on");
        assert_eq!(super::only(&experiment(&[None, None])), None);
    }
}
