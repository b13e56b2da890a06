//! How long a function may be, and what the workspace names for nobody.

use std::collections::BTreeSet;

use super::{Tree, check, dependencies};

/// The longest a function may be, its head and its last brace included.
const MOST_LINES: usize = 70;

/// Functions that are longer, by file and name, and why they are better so.
const LONGER: &[(&str, &str, &str)] = &[(
    "crates/earnest-core/src/treasurer.rs",
    "plan",
    "its rules in their order, one after the other",
)];

/// The name of the function that begins in a line as rustfmt writes it, and its indentation.
fn begins(line: &str) -> Option<(&str, usize)> {
    let text = line.trim_start();
    let (before, after) = text.split_once("fn ")?;
    let word = |word: &str| {
        ["pub", "const", "async", "unsafe"].contains(&word) || word.starts_with("pub(")
    };
    let name = after.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
    let head = before.split_whitespace().all(|it| word(it) || it.ends_with(')'));
    (head && !name.is_empty()).then(|| (name, line.len() - text.len()))
}

fn too_long(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| path.contains("src/")) {
        let lines: Vec<&str> = text.lines().collect();
        for (first, line) in lines.iter().enumerate() {
            let Some((name, indent)) = begins(line) else { continue };
            let inner =
                |line: &&&str| line.is_empty() || line.len() - line.trim_start().len() > indent;
            // The lines of its arguments and its body are further in; what ends it is not.
            let rest = lines[first + 1..].iter();
            let body =
                rest.clone().take_while(|line| inner(line) || line.starts_with(&head_ends(indent)));
            let long = body.count() + 2;
            let allowed = LONGER.iter().any(|(file, longer, _)| file == path && *longer == name);
            if long > MOST_LINES && !allowed {
                complaints.push(format!("{path}:{}: `{name}` has {long} lines", first + 1));
            }
        }
    }
    complaints
}

/// How the last line of a head that takes several lines begins.
fn head_ends(indent: usize) -> String {
    format!("{})", " ".repeat(indent))
}

#[test]
fn no_function_is_too_long() {
    let long = |head: &str| format!("{head}\n{}    }}\n", "        x();\n".repeat(MOST_LINES - 1));
    let [one, two] = [
        long("    pub(crate) const fn f(x: X) -> Y {"),
        long("    async fn f(\n        x: X,\n    ) -> Y {"),
    ];
    check(too_long, &[&[("a/src/lib.rs", &one)], &[("a/src/lib.rs", &two)]]);
    // One that is as long as it may be, and what only looks like one.
    let fits = format!("fn f() {{\n{}}}\n", "    x();\n".repeat(MOST_LINES - 2));
    let other = format!("// a fn f\n{}", "    x();\n".repeat(MOST_LINES));
    for text in [fits, other] {
        assert!(too_long(&Tree::of(&[("a/src/lib.rs", &text)])).is_empty(), "{text}");
    }
}

/// A dependency of the workspace that no crate takes.
fn unused_in_workspace(tree: &Tree) -> Vec<String> {
    let Some(root) = tree.0.get("Cargo.toml").and_then(|text| text.parse::<toml::Table>().ok())
    else {
        return vec!["Cargo.toml: there is none that can be read".to_owned()];
    };
    let mut taken = BTreeSet::new();
    for (_, manifest) in tree.manifests() {
        let (always, tests) = dependencies(&manifest);
        taken.extend(always.into_iter().chain(tests));
    }
    let named = root.get("workspace").and_then(|it| it.get("dependencies"));
    let named = named.and_then(toml::Value::as_table).into_iter().flat_map(toml::Table::keys);
    let unused = named.filter(|name| !taken.contains(*name));
    unused.map(|name| format!("Cargo.toml: no crate takes {name}")).collect()
}

#[test]
fn every_dependency_of_the_workspace_is_taken() {
    let root = "[workspace.dependencies]\na = '1'\nb = '1'\n";
    let takes = "[package]\nname = 'x'\n[dependencies]\na.workspace = true\n";
    check(unused_in_workspace, &[&[("Cargo.toml", root), ("crates/x/Cargo.toml", takes)], &[]]);
}
