//! What the documentation says about the program is what the program does: its options, its examples, its links.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use clap::CommandFactory;
use ernic::{
    backend::{Backend, Durability, S3Options, StoreKind},
    options::{Command, Options, Stop},
    startup,
};
use s3_proto::Etag;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every page: the book, the decision records, and what lies at the root.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<_> = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root().join(name)).into();
    let mut folders = vec![root().join("docs/src"), root().join("docs/decisions")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// Targets of the links of a page, and the files that it includes; without those of other hosts.
fn links(page: &str) -> Vec<String> {
    let mut links = Vec::new();
    let mut code = false;
    for line in page.lines() {
        code ^= line.trim_start().starts_with("```");
        if code {
            continue;
        }
        links.extend(line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link.to_owned()));
        links.extend(line.strip_prefix("{{#include ").and_then(|rest| rest.strip_suffix("}}")).map(str::to_owned));
    }
    links.retain(|link| !link.starts_with("http"));
    links
}

/// How a heading is reached: as mdBook and GitHub make it.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings =
        page.lines().filter_map(|line| line.strip_prefix('#')).map(|line| line.trim_start_matches('#').trim());
    let anchor = |heading: &str| -> String {
        let kept = heading.to_lowercase().replace(' ', "-");
        kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_lead_somewhere() {
    let mut checked = 0;
    for page in pages() {
        let text = read(&page);
        for link in links(&text) {
            let (file, anchor) =
                link.split_once('#').map_or((link.as_str(), None), |(file, anchor)| (file, Some(anchor)));
            let target = if file.is_empty() { page.clone() } else { page.parent().expect("a folder").join(file) };
            assert!(target.exists(), "{}: {link}", page.display());
            if let Some(anchor) = anchor {
                assert!(anchors(&read(&target)).contains(anchor), "{}: {link}", page.display());
            }
            checked += 1;
        }
    }
    assert!(checked > 30, "only {checked} links found");
}

#[test]
fn every_page_of_the_book_is_in_its_summary() {
    let src = root().join("docs/src");
    let listed: BTreeSet<_> = links(&read(&src.join("SUMMARY.md"))).into_iter().map(|link| src.join(link)).collect();
    let there: BTreeSet<_> =
        pages().into_iter().filter(|page| page.starts_with(&src) && !page.ends_with("SUMMARY.md")).collect();
    assert_eq!(listed, there);
}

#[test]
fn every_option_is_documented_with_its_default() {
    let page = read(&root().join("docs/src/guide/options.md"));
    let of_serve = read(&root().join("docs/src/guide/serve.md"));
    let command = Options::command();
    let serve = command.find_subcommand("serve").expect("a command");
    let both = command.get_arguments().map(|argument| (&page, argument));
    for (page, argument) in both.chain(serve.get_arguments().map(|argument| (&of_serve, argument))) {
        let long = argument.get_long().expect("a long name");
        let short = argument.get_short().map(|short| format!("`-{short}`, ")).unwrap_or_default();
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| {short}`--{long}")))
            .unwrap_or_else(|| panic!("no row for {short}--{long}"));
        // Only these defaults depend on where it runs.
        for default in argument.get_default_values().iter().filter(|_| long != "socket") {
            let default = default.to_str().expect("UTF-8");
            assert!(row.contains(&format!("| `{default}` |")), "{row}: default {default}");
        }
    }
    let S3Options { bucket, size, objects, ip, port, maxpart, dhcp, etag, store, durability, credentials, domain, web } =
        S3Options::default();
    assert_eq!((size, maxpart, dhcp, etag), (256 << 20, 256 << 20, true, Etag::Md5));
    assert_eq!((store, durability), (StoreKind::Memory, Durability::Full));
    assert_eq!((credentials, domain, web), (None, None, false));
    let (objects, ip, port) = (objects.to_string(), ip.to_string(), port.to_string());
    let defaults =
        [&bucket, "256M", &objects, &ip, &port, "256M", "on", "md5", "memory", "full", "none", "none", "off"];
    assert_eq!(defaults.len(), S3Options::KEYS.len());
    for (key, default) in S3Options::KEYS.into_iter().zip(defaults) {
        let default = if default == "none" { default.to_owned() } else { format!("`{default}`") };
        assert!(page.contains(&format!("| `{key}=` | {default} |")), "{key}= {default}");
        assert!(Options::command().render_long_help().to_string().contains(&format!("{key}=")), "{key} in --help");
    }
    let watch = read(&root().join("docs/src/guide/status.md"));
    for command in Options::command().get_subcommands() {
        let name = command.get_name();
        let told = match name {
            "serve" => of_serve.contains("\nernic serve "),
            _ => watch.contains(&format!("\n## ernic {name}\n")),
        };
        assert!(told && page.contains(&format!("\nernic {name} ")), "{name}");
    }
}

#[test]
fn the_start_is_quoted_as_it_is() {
    let line = startup::s3_line(&S3Options::default());
    for page in ["README.md", "docs/src/guide/options.md"] {
        assert!(read(&root().join(page)).contains(&line), "{page}");
    }
}

/// Command lines of the pages and of `--help`, each with the error that is shown for it, if one is.
fn examples() -> Vec<(String, Option<String>)> {
    let mut texts: Vec<_> = pages().iter().map(|page| read(page)).collect();
    let mut command = Options::command();
    texts.push(command.render_help().to_string());
    let serve = command.find_subcommand_mut("serve").expect("a command");
    texts.push(serve.render_help().to_string());
    let mut examples = Vec::new();
    for text in &texts {
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        for (i, line) in lines.iter().enumerate() {
            let line = line.strip_prefix("$ ").unwrap_or(line);
            let line = line.strip_prefix("target/release/").unwrap_or(line);
            let shown = |rest: &&str| rest.starts_with('-') || rest.starts_with("serve -");
            let Some(arguments) = line.strip_prefix("ernic ").filter(shown) else { continue };
            // Up to a comment, a second column, or the shell's ampersand.
            let end =
                [" #", "  ", " &"].iter().filter_map(|mark| arguments.find(mark)).min().unwrap_or(arguments.len());
            let error = lines.get(i + 1).and_then(|next| next.strip_prefix("Error: ")).map(str::to_owned);
            // No example has a space or a double meaning within its quotes.
            examples.push((format!("ernic {}", arguments[..end].replace('\'', "")), error));
        }
    }
    examples
}

#[test]
fn examples_do_what_is_shown() {
    let examples = examples();
    assert!(examples.len() >= 15, "only {examples:?}");
    for (line, error) in examples {
        match (Options::read(line.split(' ')), error) {
            (Ok(options), None) => {
                // A spelling that is silently taken for a default would not be worth showing.
                let shown = line.contains("-b") || line.contains("--backend");
                let taken = match &options.command {
                    Some(Command::Serve(serve)) => serve.backend != S3Options::of_serve(),
                    _ => options.backend != Backend::S3(S3Options::default()),
                };
                assert!(!shown || taken, "{line}");
            }
            (Err(Stop::Malformed(said)), Some(error)) => assert_eq!(said, error, "{line}"),
            (outcome, error) => panic!("{line}: {outcome:?}, shown: {error:?}"),
        }
    }
}
