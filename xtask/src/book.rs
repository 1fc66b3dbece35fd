//! The book under `docs`: every page is in its summary, every link leads somewhere, every example is compiled.
//!
//! mdBook itself checks none of this, and building it takes minutes.

use std::collections::HashMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Pages outside the book whose links are checked too.
const OTHER_PAGES: &[&str] =
    &["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "bench/README.md"];
/// Where the book's examples become doc tests.
const DOC_TESTS: &[&str] = &[
    "crates/olivine/src/book.rs",
    "crates/array/src/lib.rs",
    "crates/chain/src/lib.rs",
    "crates/lm/src/lib.rs",
    "crates/serve/src/lib.rs",
    "crates/tokenizer/src/lib.rs",
];
/// Folders whose files a page may name as code.
const SOURCES: &[&str] = &["bindings/", "crates/", "docs/", "xtask/", "bench/", "zoo/", ".ci/", ".github/"];
/// Pages that tell of the past: files that they name may be gone.
const HISTORY: &[&str] = &["CHANGELOG.md", "docs/performance/"];

/// Fails with every problem of every page.
pub(crate) fn check() -> Result<(), String> {
    let root = crate::root();
    let mut files = Vec::new();
    collect(&root.join("docs"), &mut files).map_err(|e| format!("cannot list docs: {e}"))?;
    files.extend(OTHER_PAGES.iter().map(|page| root.join(page)));
    files.sort();
    let mut pages = HashMap::new();
    for file in files {
        let text = fs::read_to_string(&file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
        let name = file.strip_prefix(&root).unwrap_or(&file).to_string_lossy().replace('\\', "/");
        pages.insert(name, Page::read(&text));
    }
    let mut tests = String::new();
    for file in DOC_TESTS {
        tests += &fs::read_to_string(root.join(file)).map_err(|e| format!("cannot read {file}: {e}"))?;
    }
    let exists = |path: &str| root.join(path).exists();
    let problems = problems(&pages, &tests, &exists);
    if problems.is_empty() {
        println!("{} pages: links resolve, and examples are doc tests", pages.len());
        Ok(())
    } else {
        Err(problems.join("\n       "))
    }
}

/// What is checked of a page.
#[derive(Default)]
struct Page {
    /// Line and target of each link.
    links: Vec<(usize, String)>,
    /// Line and text of each code span.
    spans: Vec<(usize, String)>,
    /// What links to its headings end in.
    anchors: Vec<String>,
    /// Whether it has Rust that a doc test can compile.
    rust: bool,
}

impl Page {
    fn read(text: &str) -> Self {
        let mut page = Page::default();
        let mut inside = false;
        for (i, line) in text.lines().enumerate() {
            if let Some(language) = line.trim_start().strip_prefix("```") {
                inside = !inside;
                page.rust |= inside && language.starts_with("rust") && !language.contains("ignore");
            } else if !inside {
                page.read_line(i + 1, line);
            }
        }
        page
    }

    fn read_line(&mut self, number: usize, line: &str) {
        if line.starts_with('#') {
            self.anchors.push(anchor(line.trim_start_matches('#').trim()));
        }
        // Every second part is between backticks.
        let mut prose = String::new();
        for (i, part) in line.split('`').enumerate() {
            if i % 2 == 0 {
                prose.push_str(part);
            } else {
                prose.push('`');
                self.spans.push((number, part.to_string()));
            }
        }
        let mut rest = prose.as_str();
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, after)) = after.split_once(')') else { break };
            self.links.push((number, target.to_string()));
            rest = after;
        }
    }
}

/// The end of a link to a heading, as mdBook and GitHub make it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).flat_map(char::to_lowercase).collect()
}

/// All problems, by page and line.
fn problems(pages: &HashMap<String, Page>, tests: &str, exists: &dyn Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (name, page) in pages {
        for (line, target) in &page.links {
            let problem = link_problem(name, target, pages, exists);
            found.extend(problem.map(|problem| format!("{name}:{line}: {problem}")));
        }
        let past = HISTORY.iter().any(|history| name.starts_with(history));
        for (line, span) in page.spans.iter().filter(|(_, span)| !past && is_path(span)) {
            if !exists(span) {
                found.push(format!("{name}:{line}: there is no `{span}`"));
            }
        }
        if page.rust && !tests.contains(&format!("/{name}\"")) {
            found.push(format!("{name}: its examples are not compiled: name it in {}", DOC_TESTS[0]));
        }
        let listed = |summary: &Page| {
            summary.links.iter().any(|(_, target)| resolved("docs/SUMMARY.md", target) == Some(name.clone()))
        };
        if name.starts_with("docs/")
            && name != "docs/SUMMARY.md"
            && !pages.get("docs/SUMMARY.md").is_some_and(listed)
        {
            found.push(format!("{name}: docs/SUMMARY.md does not list it"));
        }
    }
    found.sort();
    found
}

/// What is wrong with a link, if anything is.
fn link_problem(
    from: &str,
    target: &str,
    pages: &HashMap<String, Page>,
    exists: &dyn Fn(&str) -> bool,
) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let path = if file.is_empty() { Some(from.to_string()) } else { resolved(from, file) };
    let Some(path) = path else { return Some(format!("the link `{target}` leaves the repository")) };
    if from.starts_with("docs/") && !path.starts_with("docs/") {
        return Some(format!("the link `{target}` leaves the book: name the file as code instead"));
    }
    if !exists(&path) {
        return Some(format!("the link `{target}` leads nowhere"));
    }
    let known = pages.get(&path).is_none_or(|page| page.anchors.iter().any(|anchor| anchor == heading));
    (!heading.is_empty() && !known).then(|| format!("`{path}` has no heading for `#{heading}`"))
}

/// A relative link as a path from the repository's root; `None` above it.
fn resolved(from: &str, target: &str) -> Option<String> {
    let base = Path::new(from).parent().unwrap_or(Path::new(""));
    let mut parts: Vec<String> = Vec::new();
    for part in base.join(target).components() {
        match part {
            Component::Normal(name) => parts.push(name.to_string_lossy().into_owned()),
            Component::CurDir => {}
            _ => drop(parts.pop()?),
        }
    }
    Some(parts.join("/"))
}

/// Whether a code span is the name of a file of this repository.
fn is_path(span: &str) -> bool {
    SOURCES.iter().any(|folder| span.starts_with(folder))
        && span.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c))
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "md") {
            files.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn book(pages: &[(&str, &str)]) -> Vec<String> {
        let pages: HashMap<String, Page> =
            pages.iter().map(|(name, text)| (name.to_string(), Page::read(text))).collect();
        let exists = |path: &str| pages.contains_key(path) || path == "crates/ir/src/lib.rs";
        problems(&pages, "\"../../../docs/tested.md\"", &exists)
    }

    #[test]
    fn a_book_whose_links_resolve_has_no_problems() {
        let summary = "# Summary\n- [A](a.md)\n- [B](deep/b.md)\n- [T](tested.md)\n";
        let a = "# A page\n[b](deep/b.md#the-heading-of-b) [self](#a-page) [web](https://a.b/c) `crates/ir/src/lib.rs`\n";
        let b = "## The heading, of `B`!\n[a](../a.md)\n```text\n[not a link](nowhere.md)\n```\n";
        let b = b.replace("`B`", "b");
        let pages = [
            ("docs/SUMMARY.md", summary),
            ("docs/a.md", a),
            ("docs/deep/b.md", &b),
            ("docs/tested.md", "```rust\n```\n"),
        ];
        assert_eq!(book(&pages), Vec::<String>::new());
    }

    #[test]
    fn every_kind_of_problem_is_named_with_its_page() {
        let a = "[x](b.md)\n[y](../README.md)\n[z](#nothing)\n`crates/ir/src/gone.rs`\n```rust\n```\n";
        let pages =
            [("README.md", ""), ("docs/SUMMARY.md", "[A](a.md)"), ("docs/a.md", a), ("docs/c.md", "")];
        let found = book(&pages);
        let expected = [
            "docs/a.md: its examples",
            "docs/a.md:1: the link `b.md` leads nowhere",
            "docs/a.md:2: the link `../README.md` leaves the book",
            "docs/a.md:3: `docs/a.md` has no heading for `#nothing`",
            "docs/a.md:4: there is no `crates/ir/src/gone.rs`",
            "docs/c.md: docs/SUMMARY.md does not list it",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
    }

    #[test]
    fn the_examples_of_this_book_are_found() {
        assert!(Page::read("```rust,no_run\n```\n").rust);
        assert!(!Page::read("```rust,ignore\n```\n```sh\n```\n").rust);
    }
}
