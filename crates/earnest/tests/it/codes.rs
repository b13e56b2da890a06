//! Every error code stands in the one table, `earnest-core/src/problem.rs`, and nowhere else as text:
//! what is spelled twice is spelled in two ways one day.

use std::collections::BTreeSet;

use earnest_core::problem::{Code, LocalCode};

/// Codes that are words of other things, too: states, HTTP outcomes.
const WORDS: [(&str, &str); 2] = [
    ("not_found", "an outcome of PayPal's answers"),
    ("price_above_max", "a reason beside `policy_denied`"),
];

#[test]
fn no_code_stands_outside_of_the_table() {
    let codes = Code::ALL.iter().map(|code| code.as_str());
    let codes: BTreeSet<&str> =
        codes.chain(LocalCode::ALL.iter().map(|code| code.as_str())).collect();
    let mut wrong = Vec::new();
    for path in crate::debugs::sources() {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(&path).unwrap();
        // Tests spell what they expect.
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        if name.ends_with("earnest-core/src/problem.rs") || name.ends_with("/tests.rs") {
            continue;
        }
        for (n, line) in code.lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            // Every other piece between quotes is text.
            for text in line.split('"').skip(1).step_by(2) {
                let word = WORDS.iter().any(|(word, _)| *word == text) || !text.contains('_');
                if codes.contains(text) && !word {
                    wrong.push(format!("{name}:{}: {text}", n + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "use `Code` or `LocalCode`:\n{}", wrong.join("\n"));
}
