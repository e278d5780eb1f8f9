//! Documents: links lead somewhere, pages are in the summary, tutorials are run, lines are short.

use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// An address that does not exist: the repository has none yet (decision 0190).
const REPOSITORY: &str = concat!("github.com/", "silumin");
/// Characters of a line of prose.
const LINE_LIMIT: usize = 160;
/// The word that no sentence begins with.
const FRONTED: &str = "Of";

fn root() -> PathBuf {
    silumin_testkit::root()
}

/// A document, as far as these tests look at it.
struct Document {
    /// Lines and addresses of links and images.
    links: Vec<(usize, String)>,
    /// Identifiers of headings, as mdbook and GitHub make them.
    anchors: HashSet<String>,
    /// Lines of Rust code blocks that a reader may take for complete programs.
    programs: Vec<usize>,
    /// Lines of prose that are too long.
    long: Vec<usize>,
}

/// The identifier of a heading: lower case, white space to dashes, no punctuation.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter_map(|c| match c {
        c if c.is_alphanumeric() || c == '_' || c == '-' => Some(c.to_lowercase().to_string()),
        c if c.is_whitespace() => Some("-".to_owned()),
        _ => None,
    });
    kept.collect()
}

fn read(text: &str) -> Document {
    let line_of = |offset: usize| text[..offset].matches('\n').count() + 1;
    let mut document =
        Document { links: Vec::new(), anchors: HashSet::new(), programs: Vec::new(), long: Vec::new() };
    // Lines of tables and code may be long.
    let mut free = HashSet::new();
    let mut heading: Option<String> = None;
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                document.links.push((line_of(range.start), dest_url.to_string()));
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let id = slug(&heading.take().unwrap_or_default());
                let count = seen.entry(id.clone()).or_default();
                document.anchors.insert(if *count == 0 { id } else { format!("{id}-{count}") });
                *count += 1;
            }
            Event::Text(part) | Event::Code(part) if heading.is_some() => {
                heading.get_or_insert_default().push_str(&part);
            }
            Event::Start(Tag::CodeBlock(kind)) => {
                free.extend(line_of(range.start)..=line_of(range.end));
                if let CodeBlockKind::Fenced(language) = kind
                    && language.split(',').next() == Some("rust")
                    && !language.contains("ignore")
                {
                    document.programs.push(line_of(range.start));
                }
            }
            Event::Start(Tag::Table(_)) => free.extend(line_of(range.start)..=line_of(range.end)),
            _ => {}
        }
    }
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    document.long = lines
        .filter(|(number, line)| line.chars().count() > LINE_LIMIT && !free.contains(number))
        .map(|(number, _)| number)
        .collect();
    document
}

/// `base/relative` without `.` and `..`, or `None` where it leaves the base of all.
fn resolve(base: &Path, relative: &str) -> Option<PathBuf> {
    let mut path = base.to_path_buf();
    for component in Path::new(relative).components() {
        match component {
            Component::Normal(name) => path.push(name),
            Component::ParentDir => {
                if !path.pop() {
                    return None;
                }
            }
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

/// What is wrong with the links of the document at `path`, which are judged below `root`.
fn dead_links(root: &Path, path: &Path, text: &str) -> Vec<String> {
    let relative = path.strip_prefix(root).unwrap();
    let book = Path::new("book/src");
    let mut wrong = Vec::new();
    let own = read(text);
    for (line, url) in &own.links {
        let mut refuse = |why: &str| wrong.push(format!("{}:{line}: {url}: {why}", relative.display()));
        let (target, anchor) = match url.split_once('#') {
            Some((target, anchor)) => (target, Some(anchor)),
            None => (url.as_str(), None),
        };
        if target.contains(REPOSITORY) {
            refuse("the repository has no address: name the file in code (decision 0190)");
            continue;
        }
        let file = match target {
            _ if target.contains("://") || target.starts_with("mailto:") => continue,
            "" => {
                if !anchor.is_some_and(|anchor| own.anchors.contains(anchor)) {
                    refuse("no such heading");
                }
                continue;
            }
            _ => {
                let file = resolve(relative.parent().unwrap(), target);
                if let Some(file) = &file
                    && relative.starts_with(book)
                    && !file.starts_with(book)
                {
                    refuse("leads out of the book, where nothing is published: name the file in code");
                    continue;
                }
                file
            }
        };
        let Some(file) = file.map(|file| root.join(file)).filter(|file| file.exists()) else {
            refuse("no such file");
            continue;
        };
        if let Some(anchor) = anchor
            && file.extension().is_some_and(|extension| extension == "md")
            && !read(&fs::read_to_string(&file).unwrap()).anchors.contains(anchor)
        {
            refuse("no such heading");
        }
    }
    wrong
}

fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(pages(&path));
        } else if path.extension().is_some_and(|extension| extension == "md") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Every document that users read.
fn documents() -> Vec<(PathBuf, String)> {
    let root = root();
    let mut paths = pages(&root.join("book/src"));
    let others = [
        "README.md",
        "ARCHITECTURE.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "burn/README.md",
        "candle/README.md",
        "benches/gpu/README.md",
        "cli/README.md",
        "codegen/README.md",
        "emulator/README.md",
        "emulator/driver/README.md",
        "formats/README.md",
        "macros/README.md",
        "python/README.md",
        "runtime/README.md",
        "verify/README.md",
    ];
    paths.extend(others.map(|name| root.join(name)));
    paths.extend(pages(&root.join("evidence")));
    let with_text = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        (path, text)
    };
    paths.into_iter().map(with_text).collect()
}

#[test]
fn links_lead_to_files_and_headings() {
    let documents = documents();
    let wrong: Vec<String> =
        documents.iter().flat_map(|(path, text)| dead_links(&root(), path, text)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Links were found at all.
    let links: usize = documents.iter().map(|(_, text)| read(text).links.len()).sum();
    assert!(links > 200, "{links}");
}

#[test]
fn dead_links_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    fs::create_dir_all(root.join("book/src/guide")).unwrap();
    fs::write(root.join("README.md"), "# One `two`\n\n## Again\n\n## Again\n").unwrap();
    fs::write(root.join("book/src/other.md"), "# Here, and there\n").unwrap();
    let page = root.join("book/src/guide/page.md");
    let judge = |text: &str| dead_links(root, &page, text);
    let good =
        "# Page\n[a](../other.md) [b](../other.md#here-and-there) [c](#page) [d](https://example.org/none)\n";
    assert_eq!(judge(good), [""; 0]);
    for (bad, why) in [
        ("[a](../nothing.md)", "no such file"),
        ("![a](picture.svg)", "no such file"),
        ("[a](../other.md#there)", "no such heading"),
        ("[a](#nowhere)", "no such heading"),
        ("[a](../../../README.md)", "leads out of the book"),
        ("[a](../../../../../README.md)", "no such file"),
        ("[a](https://github.com/silumin/silumin/blob/main/README.md)", "the repository has no address"),
    ] {
        let wrong = judge(bad);
        assert!(wrong.len() == 1 && wrong[0].contains(why), "{bad}: {wrong:?}");
        assert!(wrong[0].starts_with("book/src/guide/page.md:1: "), "{wrong:?}");
    }
}

#[test]
fn every_page_is_in_the_summary() {
    let book = root().join("book/src");
    let summary = read(&fs::read_to_string(book.join("SUMMARY.md")).unwrap());
    let listed: HashSet<PathBuf> = summary.links.iter().map(|(_, url)| book.join(url)).collect();
    let missing: Vec<PathBuf> = pages(&book)
        .into_iter()
        .filter(|page| !page.ends_with("SUMMARY.md") && !listed.contains(page))
        .collect();
    assert!(missing.is_empty(), "mdbook leaves out what SUMMARY.md does not list: {missing:?}");
}

#[test]
fn programs_in_the_book_are_documentation_tests() {
    let facade = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let book = root().join("book/src");
    let mut programs = 0;
    for page in pages(&book) {
        let found = read(&fs::read_to_string(&page).unwrap()).programs;
        let name = page.strip_prefix(root()).unwrap().display().to_string();
        let tested = facade.contains(&format!("include_str!(\"../{name}\")"));
        assert!(
            tested || found.is_empty(),
            "{name}:{}: nothing runs this program: include the page in src/lib.rs, or mark the block `ignore`",
            found[0]
        );
        programs += found.len();
    }
    assert!(programs >= 8, "{programs}");
}

/// Files of the repository that `is_wanted` takes by their names. Build outputs and golden files are left out.
fn files(is_wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if path.is_dir() && !path.is_symlink() {
                // `codegen/src/target` is source.
                let is_built = name == "target" && !folder.ends_with("src");
                if !is_built && ![".git", ".tools", "out"].contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if is_wanted(&name) {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// What the issue templates, scripts and manifests say of the repository's address.
#[test]
fn nothing_names_a_repository_that_does_not_exist() {
    let mut files =
        files(|name| name == "Cargo.toml" || ["md", "sh", "yml"].iter().any(|end| name.ends_with(end)));
    files.push(root().join("book/book.toml"));
    assert!(files.len() > 100, "{}", files.len());
    let named: Vec<_> =
        files.iter().filter(|file| fs::read_to_string(file).unwrap().contains(REPOSITORY)).collect();
    assert!(named.is_empty(), "decision 0190: {named:?}");
}

/// The README can be read in a sitting, and its dependency is this version.
#[test]
fn the_readme_is_short_and_names_this_version() {
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.lines().count() <= 120, "{} lines", readme.lines().count());
    let version = env!("CARGO_PKG_VERSION").rsplit_once('.').unwrap().0;
    assert!(readme.contains(&format!("silumin = \"{version}\"")), "{version}");
    let programs = read(&readme).programs.len();
    let facade = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    assert!(programs == 1 && facade.contains("include_str!(\"../README.md\")"), "{programs} programs");
}

#[test]
fn lines_of_prose_are_short() {
    let long: Vec<String> = documents()
        .iter()
        .filter(|(path, _)| !path.starts_with(root().join("evidence")))
        .flat_map(|(path, text)| {
            let name = path.strip_prefix(root()).unwrap().display().to_string();
            read(text).long.into_iter().map(move |line| format!("{name}:{line}"))
        })
        .collect();
    assert!(long.is_empty(), "longer than {LINE_LIMIT} characters:\n{}", long.join("\n"));
    let sample = format!("{}\n\n| a |\n|---|\n| {} |\n", "x ".repeat(90), "y ".repeat(90));
    assert_eq!(read(&sample).long, [1]);
}

/// Lines in which a sentence begins with "of": the word has a capital nowhere else. In Rust only what follows `//` is prose.
/// PTX is searched whole, since lines of template comments (`{#- ... -#}`) have no mark of their own.
fn fronted(name: &str, text: &str) -> Vec<usize> {
    let prose = |line: &str| match name.ends_with(".rs") {
        true => line.split_once("//").map_or(String::new(), |(_, comment)| comment.to_owned()),
        false => line.to_owned(),
    };
    let begins = |line: &str| {
        prose(line)
            .split_whitespace()
            .any(|word| word.trim_start_matches(|c: char| !c.is_alphanumeric()) == FRONTED)
    };
    text.lines().enumerate().filter(|(_, line)| begins(line)).map(|(index, _)| index + 1).collect()
}

/// Readers take such a sentence for part of the one before, and meet its subject too late.
#[test]
fn no_sentence_begins_with_of() {
    let ends = [".rs", ".ptx", ".md", ".py", ".sh", ".toml"];
    let files = files(|name| ends.iter().any(|end| name.ends_with(end)));
    assert!(files.len() > 1000, "{}", files.len());
    let found: Vec<String> = files
        .iter()
        .flat_map(|path| {
            let name = path.strip_prefix(root()).unwrap().display().to_string();
            let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{name}: {e}"));
            fronted(&name, &text).into_iter().map(move |line| format!("{name}:{line}"))
        })
        .collect();
    assert!(found.is_empty(), "say the subject first:\n{}", found.join("\n"));
}

#[test]
fn sentences_that_begin_with_of_are_found() {
    for (name, bad) in [
        ("a.rs", "    /// @ A.\n"),
        ("a.rs", "let a = 1; // One. @ two rows, one is odd.\n"),
        ("a.ptx", "    // @ two rows, one is odd.\n"),
        ("a.ptx", "{#- Two rows:\n    @ each, one is odd. -#}\n"),
        ("a.md", "- **@ a pair**, each has half.\n"),
        ("a.py", "\"\"\"@ A and of B.\"\"\"\n"),
        ("a.toml", "a = 1 # (@ two.)\n"),
    ] {
        let found = fronted(name, &bad.replace('@', FRONTED));
        assert_eq!(found, [bad.matches('\n').count()], "{name}: {bad}");
    }
    for (name, good) in [
        ("a.rs", "use T::@ as B;\nlet b = \"@ two\"; // of these\n"),
        ("a.md", "Half of it. One, @fice, @-by-one\n"),
    ] {
        assert_eq!(fronted(name, &good.replace('@', FRONTED)), [0; 0], "{name}: {good}");
    }
}
