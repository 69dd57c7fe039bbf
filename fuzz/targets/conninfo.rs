//! Connection strings, of which parameters are taken out.

/// The engine needs much that a fuzzer does not; this file of it needs nothing.
#[path = "../../crates/engine/src/server/parameters.rs"]
mod parameters;

const NAMES: [&str; 3] = ["sslmode", "sslrootcert", "host"];

pub fn parameters(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let (rest, taken) = parameters::take(text, &NAMES);
    // An `@` in a URL's query becomes `%40`.
    assert!(rest.len() <= text.len() + 2 * text.matches('@').count());
    assert!(taken.keys().all(|name| NAMES.contains(&name.as_str())));
    // What is left has none of them any more.
    let (again, none) = parameters::take(&rest, &NAMES);
    assert!(none.is_empty(), "{text:?} {rest:?} {none:?}");
    assert_eq!(again, rest);
    if let Some(words) = parameters::words(text) {
        let pairs = words
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()));
        let written = parameters::written(pairs);
        assert_eq!(parameters::words(&written), Some(words), "{written:?}");
    }
}
