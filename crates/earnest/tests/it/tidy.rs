//! Rules about the tree itself, which no compiler checks: which crate may know which, that every
//! invariant has its test, that nothing lies around unused.
//!
//! Every rule is a function from a tree to complaints, each naming a file and a line; every rule is
//! also shown to complain about a tree that breaks it, since a check that cannot fail proves
//! nothing. What a rule looks for is put together at run time where this file would otherwise
//! break it.

mod edges;
mod size;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use earnest_core::problem::Code;

use edges::{EDGES, KEPT_TO};

/// The longest a Rust file may be; past it, look for the noun that was missed.
const MOST_LINES: usize = 800;

/// The files of a tree by their path from its root, with `/` between folders. Binary files are not
/// among them.
struct Tree(BTreeMap<String, String>);

impl Tree {
    /// The workspace, as git sees it: what is tracked or new, not what is ignored.
    fn workspace() -> Self {
        let root = root();
        let mut files = BTreeMap::new();
        for path in listed_by_git(&root).unwrap_or_else(|| walked(&root)) {
            // Gone from the work tree but still in git's index, or no text.
            if let Ok(text) = std::fs::read_to_string(root.join(&path)) {
                files.insert(path, text);
            }
        }
        assert!(files.contains_key("Cargo.toml"), "no workspace at {}", root.display());
        Self(files)
    }

    fn of(files: &[(&str, &str)]) -> Self {
        Self(files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect())
    }

    fn rust(&self) -> impl Iterator<Item = (&String, &String)> {
        self.0.iter().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// The crates: folder name and manifest.
    fn manifests(&self) -> impl Iterator<Item = (&str, toml::Table)> {
        self.0.iter().filter_map(|(path, text)| {
            let folder = path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml")?;
            let table = text.parse().unwrap_or_else(|why| panic!("{path}: {why}"));
            (!folder.contains('/')).then_some((folder, table))
        })
    }
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("the crate lies two folders below the workspace").to_owned()
}

fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    let listed = listed.status.success().then_some(listed.stdout)?;
    let paths = String::from_utf8(listed).ok()?;
    let paths: Vec<String> =
        paths.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    (!paths.is_empty()).then_some(paths)
}

/// Without git (an unpacked archive): every file but in folders that are never tracked.
fn walked(root: &Path) -> Vec<String> {
    const SKIPPED: &[&str] =
        &[".git", "target", "node_modules", ".venv", ".tools", "__pycache__", "earnest-data"];
    let (mut found, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder can be read") {
            let entry = entry.expect("an entry can be read");
            let path = entry.path();
            if SKIPPED.iter().any(|skipped| entry.file_name() == *skipped) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(inner) = path.strip_prefix(root) {
                found.push(inner.to_string_lossy().replace('\\', "/"));
            }
        }
    }
    found
}

/// Fails with every complaint, one a line.
fn expect_none(complaints: &[String]) {
    assert!(complaints.is_empty(), "{} complaint(s):\n{}", complaints.len(), complaints.join("\n"));
}

/// A rule holds for the workspace, and complains about each of these trees.
fn check(rule: fn(&Tree) -> Vec<String>, broken: &[&[(&str, &str)]]) {
    for files in broken {
        let names: Vec<&str> = files.iter().map(|(path, _)| *path).collect();
        assert!(!rule(&Tree::of(files)).is_empty(), "no complaint about the broken tree {names:?}");
    }
    expect_none(&rule(&Tree::workspace()));
}

// ---- crates ------------------------------------------------------------------------------------

/// The names a manifest depends on: always, and for tests only.
fn dependencies(manifest: &toml::Table) -> (BTreeSet<String>, BTreeSet<String>) {
    let (mut always, mut tests) = (BTreeSet::new(), BTreeSet::new());
    let mut tables = vec![manifest];
    let platforms = manifest.get("target").and_then(toml::Value::as_table);
    tables.extend(platforms.into_iter().flat_map(|all| all.values()).filter_map(|t| t.as_table()));
    for table in tables {
        for section in ["dependencies", "build-dependencies", "dev-dependencies"] {
            let into = if section == "dev-dependencies" { &mut tests } else { &mut always };
            let named = table.get(section).and_then(toml::Value::as_table);
            for (name, how) in named.into_iter().flatten() {
                let renamed = how.get("package").and_then(toml::Value::as_str);
                into.insert(renamed.unwrap_or(name).to_owned());
            }
        }
    }
    (always, tests)
}

fn crate_edges(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    let ours: BTreeSet<&str> = EDGES.iter().map(|(name, _, _)| *name).collect();
    for (folder, manifest) in tree.manifests() {
        let at = format!("crates/{folder}/Cargo.toml");
        let package = manifest.get("package").and_then(toml::Value::as_table);
        let text = |key| package.and_then(|package| package.get(key)).and_then(toml::Value::as_str);
        if text("name") != Some(folder) {
            complaints.push(format!("{at}: the crate is not named as its folder"));
        }
        if text("description").is_none_or(str::is_empty) {
            complaints.push(format!("{at}: say in `description` what the crate keeps out or in"));
        }
        let lints = manifest.get("lints").and_then(|lints| lints.get("workspace"));
        if lints.and_then(toml::Value::as_bool) != Some(true) {
            complaints.push(format!("{at}: `lints.workspace = true` is missing"));
        }
        let Some((_, always, in_tests)) = EDGES.iter().find(|(name, _, _)| *name == folder) else {
            complaints.push(format!("{at}: a new crate needs its line in EDGES in tidy.rs"));
            continue;
        };
        let (depends, tests) = dependencies(&manifest);
        let known = |name: &str| ours.contains(name) || name.starts_with("earnest");
        for name in depends.iter().filter(|name| known(name)) {
            if !always.contains(&name.as_str()) {
                complaints.push(format!("{at}: may not depend on {name}"));
            }
        }
        for name in tests.iter().filter(|name| known(name)) {
            if !always.contains(&name.as_str()) && !in_tests.contains(&name.as_str()) {
                complaints.push(format!("{at}: its tests may not use {name}"));
            }
        }
        for (name, users, why) in KEPT_TO {
            if depends.contains(*name) && !users.contains(&folder) {
                complaints.push(format!("{at}: may not depend on {name}: {why}"));
            }
        }
    }
    complaints
}

/// The edges that a line of the picture shows: `a ──▶ b, c ──▶ d`.
fn drawn(line: &str) -> BTreeSet<(String, String)> {
    let groups: Vec<Vec<&str>> = line
        .split("──▶")
        .map(|group| group.split(',').map(str::trim).filter(|name| !name.contains(' ')).collect())
        .collect();
    let between = |pair: &[Vec<&str>]| {
        let [from, to] = pair else { return Vec::new() };
        let edge = |from: &&str, to: &&str| ((*from).to_owned(), (*to).to_owned());
        from.iter().flat_map(|from| to.iter().map(move |to| edge(from, to))).collect()
    };
    groups.windows(2).flat_map(between).collect()
}

/// The picture in ARCHITECTURE.md shows exactly the edges that manifests may have.
fn picture(tree: &Tree) -> Vec<String> {
    const MARK: &str = "in tests:";
    let Some(text) = tree.0.get("ARCHITECTURE.md") else {
        return vec!["ARCHITECTURE.md: it is not there".to_owned()];
    };
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("──▶")).collect();
    let (tests, always): (Vec<&str>, Vec<&str>) =
        lines.into_iter().partition(|line| line.starts_with(MARK));
    let (mut known, mut known_in_tests) = (BTreeSet::new(), BTreeSet::new());
    for (from, to, in_tests) in EDGES {
        known.extend(to.iter().map(|to| ((*from).to_owned(), (*to).to_owned())));
        known_in_tests.extend(in_tests.iter().map(|to| ((*from).to_owned(), (*to).to_owned())));
    }
    let shown: BTreeSet<_> = always.iter().flat_map(|line| drawn(line)).collect();
    let shown_in_tests: BTreeSet<_> =
        tests.iter().flat_map(|line| drawn(&line[MARK.len()..])).collect();
    let mut complaints = Vec::new();
    for (what, shown, known) in
        [("always", shown, known), ("in tests", shown_in_tests, known_in_tests)]
    {
        for (from, to) in shown.symmetric_difference(&known) {
            complaints.push(format!("ARCHITECTURE.md: {what}, {from} ──▶ {to} differs"));
        }
    }
    complaints
}

#[test]
fn the_picture_shows_every_edge_and_no_other() {
    let whole = Tree::workspace().0.remove("ARCHITECTURE.md").expect("the page is there");
    let more = whole.replace("in tests: earnest-paypal", "in tests: earnest-sdk");
    let less =
        whole.replace("in tests: earnest-core ──▶ earnest-sim, earnest-store, pg-cluster\n", "");
    let other = whole.replace("earnest ──▶ earnest-core\n", "earnest-sdk ──▶ earnest-store\n");
    for broken in [&more, &less, &other] {
        assert_ne!(*broken, whole);
    }
    check(
        picture,
        &[
            &[("ARCHITECTURE.md", &more)],
            &[("ARCHITECTURE.md", &less)],
            &[("ARCHITECTURE.md", &other)],
            &[("README.md", "no picture")],
        ],
    );
}

#[test]
fn crates_know_only_what_they_may() {
    let crate_with = |dependencies: &str, name: &str| {
        format!(
            "[package]\nname = '{name}'\ndescription = 'd'\n[lints]\nworkspace = true\n{dependencies}"
        )
    };
    let core = crate_with("[dependencies]\ntokio = '1'", "earnest-core");
    let sim = crate_with("[dev-dependencies]\nearnest-paypal = '1'", "paypal-sim");
    let renamed = crate_with("[dependencies]\nx = { package = 'earnest-store' }", "earnest-sdk");
    let platform =
        crate_with("[target.'cfg(unix)'.dependencies]\nearnest-sdk = '1'", "earnest-paypal");
    let stranger = crate_with("", "earnest-utils");
    check(
        crate_edges,
        &[
            &[("crates/earnest-core/Cargo.toml", &core)],
            &[("crates/paypal-sim/Cargo.toml", &sim)],
            &[("crates/earnest-sdk/Cargo.toml", &renamed)],
            &[("crates/earnest-paypal/Cargo.toml", &platform)],
            &[("crates/earnest-utils/Cargo.toml", &stranger)],
        ],
    );
}

/// Crates whose code is named otherwise than they are.
const NAMED_OTHERWISE: &[(&str, &str)] = &[("rustls-webpki", "webpki")];

/// A dependency that no code names is compiled for nobody.
fn unused_dependencies(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (folder, manifest) in tree.manifests() {
        let (always, tests) = dependencies(&manifest);
        let own = format!("crates/{folder}/");
        let code = |path: &&String| {
            path.ends_with(".rs") && (path.starts_with(&own) || path.starts_with("examples/"))
        };
        let words: BTreeSet<&str> = tree
            .0
            .iter()
            .filter(|(path, _)| code(path))
            .flat_map(|(_, text)| text.split(|c: char| !c.is_alphanumeric() && c != '_'))
            .collect();
        for name in always.union(&tests) {
            let known = NAMED_OTHERWISE.iter().find(|(other, _)| other == name);
            let word = known.map_or_else(|| name.replace('-', "_"), |(_, word)| (*word).to_owned());
            if !words.contains(word.as_str()) {
                complaints.push(format!("{own}Cargo.toml: no code of it names {name}"));
            }
        }
    }
    complaints
}

#[test]
fn every_dependency_is_named_by_code() {
    let manifest = "[package]\nname = 'earnest'\n[dependencies]\nfutures-util = '1'";
    check(
        unused_dependencies,
        &[
            &[("crates/earnest/Cargo.toml", manifest)],
            &[("crates/earnest/Cargo.toml", manifest), ("crates/earnest/src/lib.rs", "use other;")],
            &[
                ("crates/earnest/Cargo.toml", manifest),
                ("crates/earnest-core/src/lib.rs", "use futures_util;"),
            ],
        ],
    );
}

// ---- invariants --------------------------------------------------------------------------------

/// The text of a comment line.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim())
}

/// A name that a test may carry: two words at least, so that prose is not taken for one.
fn is_name(text: &str) -> bool {
    text.contains('_')
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// The names of all test functions.
fn tests(tree: &Tree) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    for (_, text) in tree.rust() {
        let mut marked = false;
        for line in text.lines().map(str::trim) {
            if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
                marked = true;
            } else if let Some((_, rest)) = line.split_once("fn ") {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                if let (true, Some(name)) = (marked, end.and_then(|end| rest.get(..end))) {
                    names.insert(name);
                }
                marked = false;
            }
        }
    }
    names
}

fn invariants(tree: &Tree) -> Vec<String> {
    let tests = tests(tree);
    let mut complaints = Vec::new();
    for (path, text) in tree.rust() {
        for (number, line) in (1..).zip(text.lines()) {
            let Some(claim) = comment(line).and_then(|text| text.strip_prefix("INVARIANT:")) else {
                continue;
            };
            // A name, and after it whatever helps the reader.
            let word = claim.split_whitespace().next().unwrap_or_default();
            let name = word.trim_end_matches([':', '.', ',', ';']);
            if !is_name(name) {
                complaints.push(format!(
                    "{path}:{number}: prose where the name of a test should stand:{claim}"
                ));
            } else if !tests.contains(name) {
                complaints.push(format!("{path}:{number}: no test is named {name}"));
            }
        }
    }
    complaints
}

#[test]
fn every_invariant_has_a_test_of_its_name() {
    let mark = "INVARIANT";
    let named = format!("// {mark}: debits_equal_credits\nfn apply() {{}}\n");
    let prose =
        format!("/// {mark}: Debits equal credits.\n#[test]\nfn debits_equal_credits() {{}}");
    let only_a_function = format!("// {mark}: a_b\nfn a_b() {{}}");
    check(invariants, &[&[("a.rs", &named)], &[("a.rs", &prose)], &[("a.rs", &only_a_function)]]);
    let tested = format!("{named}#[tokio::test]\nasync fn debits_equal_credits() {{}}");
    expect_none(&invariants(&Tree::of(&[("a.rs", &tested)])));
}

// ---- files -------------------------------------------------------------------------------------

/// The modules that a file declares, with the path it may give for each.
fn declared(text: &str) -> Vec<(&str, Option<&str>)> {
    let (mut found, mut path) = (Vec::new(), None);
    for line in text.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("#[path = \"") {
            path = rest.split('"').next();
            continue;
        }
        let mut rest = line;
        if let Some(after) = rest.strip_prefix("pub") {
            rest = after.trim_start();
            if rest.starts_with('(') {
                rest = rest.split_once(')').map_or("", |(_, after)| after).trim_start();
            }
        }
        if let Some(name) = rest.strip_prefix("mod ").and_then(|rest| rest.split_once(';')) {
            found.push((name.0.trim(), path.take()));
        } else if !line.starts_with("#[") {
            path = None;
        }
    }
    found
}

/// Whether cargo finds the file as the root of a library, program or test: by itself, or because a
/// manifest says so.
fn is_root(tree: &Tree, path: &str) -> bool {
    let Some((_, inner)) = path.strip_prefix("crates/").and_then(|p| p.split_once('/')) else {
        let named = format!("path = \"../../{path}\"");
        let is_manifest = |other: &str| other.ends_with("/Cargo.toml");
        return tree.0.iter().any(|(other, text)| is_manifest(other) && text.contains(&named));
    };
    let parts: Vec<&str> = inner.split('/').collect();
    matches!(
        parts.as_slice(),
        ["build.rs"]
            | ["src", "lib.rs" | "main.rs"]
            | ["src", "bin", _]
            | ["src", "bin", _, "main.rs"]
            | ["tests" | "examples" | "benches", _]
            | ["tests" | "examples" | "benches", _, "main.rs"]
    )
}

fn reachable(tree: &Tree) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let roots = tree.rust().map(|(path, _)| path).filter(|path| is_root(tree, path));
    let mut open: Vec<(String, bool)> = roots.map(|path| (path.clone(), true)).collect();
    while let Some((path, owns_folder)) = open.pop() {
        let Some(text) = tree.0.get(&path) else { continue };
        if !reached.insert(path.clone()) {
            continue;
        }
        let (folder, file) = path.rsplit_once('/').unwrap_or(("", &path));
        let inner = match file.strip_suffix(".rs") {
            Some(stem) if !owns_folder && stem != "mod" => format!("{folder}/{stem}"),
            _ => folder.to_owned(),
        };
        for (name, given) in declared(text) {
            match given {
                Some(given) => open.push((format!("{folder}/{given}"), true)),
                None => {
                    open.push((format!("{inner}/{name}.rs"), false));
                    open.push((format!("{inner}/{name}/mod.rs"), true));
                }
            }
        }
    }
    reached
}

fn orphans(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    let reached = reachable(tree);
    for (path, text) in tree.rust() {
        if !reached.contains(path) {
            complaints.push(format!("{path}: no `mod` reaches this file"));
        } else if text.trim().is_empty() {
            complaints.push(format!("{path}: empty"));
        }
    }
    for path in tree.0.keys() {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mentioned = |word: &str, by: &dyn Fn(&str) -> bool| {
            tree.0.iter().any(|(other, text)| other != path && by(other) && text.contains(word))
        };
        let krate = path.split('/').take(2).collect::<Vec<_>>().join("/");
        let beside = |other: &str| other.starts_with(&krate) && other.ends_with(".rs");
        let data = path.starts_with("crates/")
            && (path.contains("/src/") || path.contains("/tests/"))
            && !path.ends_with(".rs");
        let parent = folder.rsplit('/').next().unwrap_or_default();
        if data && !mentioned(name, &beside) && !mentioned(&format!("{parent}/"), &beside) {
            complaints.push(format!("{path}: no code of its crate names this file"));
        }
        let by_use = |other: &str| {
            other == "Makefile" || other.starts_with("scripts/") || other.starts_with("judges/")
        };
        if path.starts_with("scripts/") && !mentioned(path, &by_use) {
            complaints.push(format!("{path}: neither Makefile nor another script runs this"));
        }
        let by_docs = |other: &str| matches!(other, "README.md" | "CONTRIBUTING.md");
        let document = folder.is_empty() && path.ends_with(".md") && path != "README.md";
        if document && !mentioned(&format!("]({path})"), &by_docs) {
            complaints.push(format!("{path}: neither README.md nor CONTRIBUTING.md links to it"));
        }
    }
    complaints
}

#[test]
fn no_file_is_an_orphan() {
    check(
        orphans,
        &[
            &[("crates/a/src/lib.rs", "mod b;"), ("crates/a/src/c.rs", "fn c() {}")],
            &[("crates/a/src/lib.rs", "// mod b;\n"), ("crates/a/src/b.rs", "fn b() {}")],
            // `b` is no folder's owner, so its child lies under `b/`.
            &[
                ("crates/a/src/lib.rs", "mod b;"),
                ("crates/a/src/b.rs", "pub(crate) mod c;"),
                ("crates/a/src/c.rs", "fn c() {}"),
            ],
            &[("crates/a/src/lib.rs", "fn a() {}"), ("crates/a/src/old.sql", "SELECT 1")],
            &[("examples/old.rs", "fn main() {}"), ("crates/a/Cargo.toml", "[package]")],
            &[("README.md", "nothing"), ("NOTES.md", "x")],
            &[("Makefile", "all:"), ("scripts/old.sh", "true")],
        ],
    );
    expect_none(&orphans(&Tree::of(&[
        ("crates/a/src/lib.rs", "pub mod b;\nconst S: &str = include_str!(\"x.sql\");"),
        ("crates/a/src/b.rs", "#[cfg(test)]\n#[path = \"odd.rs\"]\nmod tests;\nmod c;"),
        ("crates/a/src/b/c.rs", "fn c() {}"),
        ("crates/a/src/odd.rs", "fn odd() {}"),
        ("crates/a/src/x.sql", "SELECT 1"),
        ("crates/a/tests/it/main.rs", "mod d;"),
        ("crates/a/tests/it/d/mod.rs", "mod e;"),
        ("crates/a/tests/it/d/e.rs", "fn e() {}"),
        ("crates/a/Cargo.toml", "[[example]]\npath = \"../../examples/f.rs\""),
        ("examples/f.rs", "fn main() {}"),
    ])));
}

fn dead_links(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in tree.0.iter().filter(|(path, _)| path.ends_with(".md")) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (number, line) in (1..).zip(text.lines()) {
            for target in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                let target = target.split('#').next().unwrap_or_default();
                if target.is_empty() || target.contains("://") {
                    continue;
                }
                let mut parts: Vec<&str> = folder.split('/').filter(|p| !p.is_empty()).collect();
                for part in target.trim_end_matches('/').split('/') {
                    match part {
                        ".." => drop(parts.pop()),
                        "." => (),
                        part => parts.push(part),
                    }
                }
                let goal = parts.join("/");
                let below = format!("{goal}/");
                let there = |file: &String| *file == goal || file.starts_with(&below);
                if !tree.0.keys().any(there) {
                    complaints.push(format!("{path}:{number}: nothing at {target}"));
                }
            }
        }
    }
    complaints
}

#[test]
fn links_between_documents_lead_somewhere() {
    check(
        dead_links,
        &[&[("README.md", "see [x](X.md)")], &[("judges/README.md", "see [x](../Y.md#part)")]],
    );
}

// ---- what may not stand in a file --------------------------------------------------------------

fn too_long(tree: &Tree) -> Vec<String> {
    let lengths = tree.rust().map(|(path, text)| (path, text.lines().count()));
    let long = lengths.filter(|(_, lines)| *lines > MOST_LINES);
    long.map(|(path, lines)| format!("{path}: {lines} lines; look for the missing noun")).collect()
}

#[test]
fn no_file_is_too_long() {
    check(too_long, &[&[("a.rs", &"x\n".repeat(MOST_LINES + 1))]]);
}

/// What stands at the root of every Unix and is the same on each machine, and what stands for one.
const EVERYWHERE: [&str; 9] = ["bin", "dev", "etc", "lib", "path", "proc", "sys", "tmp", "usr"];

/// An absolute path of a file or folder that only some machine has: two names or more from the root,
/// and no path of ours over HTTP. What stands for one, `/path/to/…`, is fine.
fn machine_path(line: &str) -> Option<&str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    for (at, _) in line.match_indices('/') {
        let before = line.get(..at).and_then(|before| before.chars().next_back());
        if before.is_some_and(|c| is_name(c) || "~/$}{:*<>)]".contains(c)) {
            continue;
        }
        let rest = line.get(at..).unwrap_or_default();
        let path = rest.split(|c: char| !is_name(c) && c != '/').next().unwrap_or_default();
        let names: Vec<&str> = path.split('/').skip(1).collect();
        let homes = [["ho", "me"], ["ro", "ot"], ["Us", "ers"]].map(|parts| parts.concat());
        let Some(first) = names.first() else { continue };
        let home = homes.iter().any(|home| home == first) && names.len() > 1;
        // A source, a build folder or a manifest stands on a disk; no route of ours ends so.
        let ends = [".rs", ".toml", ".md", ".json", ".key", ".db", ".sh", ".py", ".js", ".jws"];
        let on_disk = names.len() > 2 && ends.iter().any(|end| path.ends_with(end));
        let built = names.iter().skip(1).any(|name| ["crates", "target"].contains(name));
        if !EVERYWHERE.contains(first) && (home || on_disk || built) {
            return Some(path);
        }
    }
    None
}

fn forbidden_words(tree: &Tree) -> Vec<String> {
    let unfinished = [["to", "do!("], ["unimpl", "emented!("], ["FIX", "ME"], ["XX", "X:"]];
    let hosts = [
        ["crates", ".io"],
        ["npmjs", ".org"],
        ["npmjs", ".com"],
        ["pypi", ".org"],
        ["pythonhosted", ".org"],
        ["debian", ".org"],
        ["yarnpkg", ".com"],
    ];
    let mut complaints = Vec::new();
    for (path, text) in &tree.0 {
        for (number, line) in (1..).zip(text.lines()) {
            for word in unfinished.map(|parts| parts.concat()) {
                if line.contains(&word) {
                    complaints.push(format!("{path}:{number}: unfinished: `{word}`"));
                }
            }
            if let Some(place) = machine_path(line) {
                complaints.push(format!("{path}:{number}: a path of some machine: `{place}`"));
            }
            // Cargo writes the name of its index beside every crate in its lock file.
            let source = "source = \"registry+https://github.com/rust-lang/";
            if path == "Cargo.lock" && line.starts_with(source) {
                continue;
            }
            for host in hosts.map(|parts| parts.concat()) {
                if line.contains(&host) {
                    complaints.push(format!("{path}:{number}: a registry's host: `{host}`"));
                }
            }
        }
    }
    complaints
}

#[test]
fn no_machine_registry_or_loose_end_is_named() {
    let line = |parts: [&str; 2], rest: &str| format!("x = '{}{rest}'", parts.concat());
    let broken = [
        line(["/ho", "me/"], "a"),
        line(["/sr", "v/"], "build/notes.md"),
        line(["/any", "where/"], "crates/a"),
        line(["/any", "where/"], "target"),
        line(["to", "do!("], ")"),
        line(["https://registry.npmjs", ".org"], "/x"),
        line(["FIX", "ME"], ""),
    ];
    let trees: Vec<[(&str, &str); 1]> = broken.iter().map(|l| [("a.rs", l.as_str())]).collect();
    check(forbidden_words, &trees.iter().map(<[_; 1]>::as_slice).collect::<Vec<_>>());
    for fine in [
        line(["https://api.example/ho", "me/"], "a"),
        line(["/v1/", "tabs/"], "x"),
        line(["/tm", "p/"], "a/b.rs"),
        line(["crates/", "earnest/"], "src/a.rs"),
        line(["/.well-known/", ""], "jwks.json"),
    ] {
        expect_none(&forbidden_words(&Tree::of(&[("a.rs", &fine)])));
    }
}

fn floats(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    let rules = tree.rust().filter(|(path, _)| path.starts_with("crates/earnest-core/src/"));
    for (path, text) in rules {
        for (number, line) in (1..).zip(text.lines()) {
            // The one way serde hands over a JSON float; it is refused there.
            let refused = line.contains("fn visit_f64<E>(self, _: f64)");
            if comment(line).is_some() || refused {
                continue;
            }
            let mut words = line.split(|c: char| !c.is_ascii_alphanumeric());
            if words.any(|word| word == "f32" || word == "f64") {
                complaints.push(format!("{path}:{number}: a float where money is decided"));
            }
        }
    }
    complaints
}

#[test]
fn no_float_decides_where_money_goes() {
    let file = "crates/earnest-core/src/a.rs";
    check(floats, &[&[(file, "let x: f64 = 1.0;")], &[(file, "fn a() -> Vec<f32> {}")]]);
}

fn loose_pins(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in &tree.0 {
        let name = path.rsplit('/').next().unwrap_or_default();
        if name.starts_with("requirements") {
            for (number, line) in (1..).zip(text.lines().map(str::trim)) {
                let counts = !line.is_empty() && !line.starts_with(['#', '-']);
                if counts && !line.contains("==") {
                    complaints.push(format!("{path}:{number}: pin it with `==`"));
                }
            }
        }
        if name == "package.json" {
            let json: serde_json::Value = serde_json::from_str(text).expect("JSON");
            let lock = path.replace("package.json", "package-lock.json");
            if !tree.0.contains_key(&lock) {
                complaints.push(format!("{path}: no package-lock.json beside it"));
            }
            for section in ["dependencies", "devDependencies"] {
                for (package, version) in json[section].as_object().into_iter().flatten() {
                    let exact = version.as_str().is_some_and(|v| v.starts_with(char::is_numeric));
                    if !exact {
                        complaints.push(format!("{path}: {package} {version} is not pinned"));
                    }
                }
            }
        }
        if name == "package-lock.json" && text.contains("\"resolved\"") {
            complaints.push(format!("{path}: holds download addresses (`resolved`)"));
        }
    }
    complaints
}

#[test]
fn tools_of_the_judges_are_pinned() {
    check(
        loose_pins,
        &[
            &[("judges/a/requirements.txt", "requests>=2")],
            &[("judges/a/package.json", r#"{"dependencies":{"jose":"6.0.0"}}"#)],
            &[
                ("judges/a/package.json", r#"{"devDependencies":{"jose":"^6.0.0"}}"#),
                ("judges/a/package-lock.json", "{}"),
            ],
            &[("judges/a/package-lock.json", r#"{"resolved":"x"}"#)],
        ],
    );
}

// ---- the table of errors -----------------------------------------------------------------------

#[test]
fn the_table_of_errors_is_sound() {
    let mut seen = BTreeSet::new();
    let mut titles = BTreeSet::new();
    for code in Code::ALL {
        let text = code.as_str();
        assert!(seen.insert(text), "`{text}` stands in the table twice");
        assert!(text.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "`{text}`: odd letters");
        assert_eq!(Code::parse(text), Some(*code), "`{text}` does not read back");
        assert!((400..=599).contains(&code.status()), "`{text}`: status {}", code.status());
        let title = code.title();
        assert!(titles.insert(title), "`{text}`: another code has the title `{title}`");
        assert!(title.starts_with(|c: char| c.is_ascii_uppercase()), "`{text}`: title `{title}`");
        assert!(title.len() >= 10 && !title.ends_with('.'), "`{text}`: title `{title}`");
        assert!((1..=11).contains(&code.exit_code()), "`{text}`: exit {}", code.exit_code());
        let json = serde_json::to_value(code).expect("a code is JSON");
        assert_eq!(json, text, "`{text}` is written otherwise in JSON");
        // 402 promises that paying again is safe, so none of them may say `try again unchanged`.
        assert!(code.status() != 402 || !code.retryable(), "`{text}`: 402 and retryable");
    }
}
