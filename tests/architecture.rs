//! The rules of design A1: who may import whom. A new import that breaks one turns this red.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

fn sources(folder: &str) -> Vec<(PathBuf, String)> {
    fn walk(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    walk(&root.join(folder), &mut found);
    assert!(!found.is_empty(), "{folder} has no sources");
    found
}

/// Lines of code, without comments, that hold one of the words.
fn lines_with<'a>(text: &'a str, words: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    text.lines()
        .map(|line| line.split("//").next().unwrap_or(""))
        .filter(move |line| words.iter().any(|word| line.contains(word)))
}

fn outside_platform() -> Vec<(PathBuf, String)> {
    let all = sources("src");
    all.into_iter()
        .filter(|(path, _)| !path.components().any(|part| part.as_os_str() == "platform"))
        .filter(|(path, _)| path.file_name().is_none_or(|name| name != "lib.rs"))
        .collect()
}

fn refuse(found: Vec<(PathBuf, String)>, words: &[&str], rule: &str) {
    let broken: Vec<String> = found
        .iter()
        .flat_map(|(path, text)| {
            lines_with(text, words).map(move |line| format!("{}: {}", path.display(), line.trim()))
        })
        .collect();
    assert!(broken.is_empty(), "{rule}:\n{}", broken.join("\n"));
}

#[test]
fn the_core_imports_nothing_of_the_platform() {
    let words = ["worker::", "use worker", "js_sys", "web_sys", "wasm_bindgen", "rusqlite::", "platform::cloudflare"];
    refuse(outside_platform(), &words, "the core is pure (A1)");
}

#[test]
fn the_core_reads_neither_clock_nor_randomness() {
    let words = ["SystemTime", "Instant::now", "Date::now", "Utc::now", "getrandom", "rand::", "thread_rng"];
    refuse(outside_platform(), &words, "clock and randomness are ports (A1)");
}

#[test]
fn durable_execution_knows_nothing_that_is_built_on_it() {
    let words = ["crate::task", "crate::ledger", "crate::workspace", "crate::messaging", "crate::http", "crate::hook"];
    refuse(sources("src/agent"), &words, "agent/ knows nothing above it (A1)");
}

#[test]
fn the_model_layer_knows_no_agent() {
    let words = ["crate::agent", "crate::hook", "crate::http", "crate::config", "crate::port"];
    refuse(sources("src/model"), &words, "model/ stands alone");
}

#[test]
fn the_edge_knows_no_machine() {
    refuse(sources("src/http"), &["crate::agent", "crate::hook"], "http/ is about requests alone");
}

#[test]
fn no_decision_is_made_in_async_code_of_the_machine() {
    // The driver and what it reads with are async; the machine is not (A2).
    let machine: Vec<(PathBuf, String)> = sources("src/agent")
        .into_iter()
        .filter(|(path, _)| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            !["driver.rs", "stream.rs", "driver_tests.rs"].contains(&name.as_str())
        })
        .collect();
    refuse(machine, &["async fn", "async move", ".await"], "machines are synchronous (A2)");
}

#[test]
fn sql_cursor_one_is_never_called() {
    refuse(sources("src"), &[".one()", ".one::<"], "SqlCursor::one kills the instance on 0 or 2 rows");
}
