//! What is printed and what is written.

use std::{fs, path::Path, process::Command};

use serde_json::{Map, Value, json};

use crate::{
    Bench,
    figures::{Bound, Figure, Goal},
};

/// The table on standard output, which is Markdown, and the JSON object of the schema.
#[derive(Debug)]
pub struct Report {
    meta: Map<String, Value>,
    results: Map<String, Value>,
}

impl Report {
    /// Prints the head of the table.
    pub fn new(bench: &Bench) -> Self {
        let mut meta = Map::new();
        let profile = bench
            .server
            .parent()
            .and_then(Path::file_name)
            .map_or_else(|| "unknown".into(), |name| name.to_string_lossy());
        let commit = output("git", &["rev-parse", "HEAD"]).map(|commit| {
            let clean = output("git", &["status", "--porcelain"]).is_some_and(|changes| changes.is_empty());
            if clean { commit } else { format!("{commit} and changes") }
        });
        meta.insert("commit".into(), json!(commit));
        meta.insert("date".into(), json!(output("date", &["-u", "+%Y-%m-%dT%H:%M:%SZ"])));
        meta.insert("cpu".into(), json!(cpu_model()));
        meta.insert("cores".into(), json!(std::thread::available_parallelism().map_or(0, usize::from)));
        meta.insert("kernel".into(), json!(read("/proc/sys/kernel/osrelease")));
        meta.insert("rustc".into(), json!(output("rustc", &["--version"])));
        meta.insert("profile".into(), json!(profile));
        meta.insert("starts".into(), json!(bench.starts));
        meta.insert("load_before".into(), load());
        for (name, value) in &meta {
            println!("{name}: {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        }
        println!("\n| key | figure | of each start | asked | |\n|---|---|---|---|---|");
        Self { meta, results: Map::new() }
    }

    /// Prints a row.
    pub fn add(&mut self, figure: &Figure, result: Map<String, Value>) {
        let list = |value: &Value| value.as_array().map(|all| all.iter().map(number).collect::<Vec<_>>().join(" "));
        let starts: Vec<String> = result.values().filter_map(list).collect();
        let asked: Vec<String> = figure.goals.iter().map(text).collect();
        let verdicts: Vec<&str> =
            figure.goals.iter().map(|goal| if reached(goal, &result) { "reached" } else { "MISSED" }).collect();
        println!(
            "| `{}` | {} | {} | {} | {} |",
            figure.key,
            summary(&result),
            starts.join("; "),
            asked.join(", "),
            verdicts.join(", ")
        );
        self.results.insert(figure.key.to_owned(), Value::Object(result));
    }

    /// The end of the run.
    pub fn finish(&mut self) {
        self.meta.insert("load_after".into(), load());
        println!("\nload_after: {}", load());
    }

    /// Everything that was measured.
    pub fn json(&self) -> String {
        format!("{:#}\n", json!({ "meta": self.meta, "results": self.results }))
    }
}

/// The result in a line: fields in the order of the schema.
fn summary(result: &Map<String, Value>) -> String {
    let mut order: Vec<&String> = result.keys().filter(|name| !name.ends_with("_of_starts")).collect();
    let first = ["rate", "gbps", "p50_us", "p90_us", "p99_us", "ratio", "total_us", "rss_kib", "cpu_ms_per_s"];
    order.sort_by_key(|name| (first.iter().position(|f| f == name).unwrap_or(first.len()), *name));
    let field = |name: &String| format!("{name} {}", result.get(name).map_or_else(String::new, number));
    order.into_iter().map(field).collect::<Vec<_>>().join(", ")
}

/// Three significant digits are what a shared machine is good for.
fn number(value: &Value) -> String {
    match value.as_f64() {
        Some(n) if value.is_u64() || n.abs() >= 100.0 => format!("{n:.0}"),
        Some(n) if n.abs() >= 10.0 => format!("{n:.1}"),
        Some(n) => format!("{n:.2}"),
        None => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
    }
}

fn text(goal: &Goal) -> String {
    let sign = match goal.bound {
        Bound::AtMost => "≤",
        Bound::AtLeast => "≥",
    };
    format!("{} {sign} {}", goal.field, goal.limit)
}

fn reached(goal: &Goal, result: &Map<String, Value>) -> bool {
    result.get(goal.field).and_then(Value::as_f64).is_some_and(|value| match goal.bound {
        Bound::AtMost => value <= goal.limit,
        Bound::AtLeast => value >= goal.limit,
    })
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn cpu_model() -> Option<String> {
    let info = read("/proc/cpuinfo")?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_owned())
}

/// The load averages of 1, 5 and 15 minutes.
fn load() -> Value {
    let text = read("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).map(|n| n.parse::<f64>().map_or(Value::Null, |n| json!(n))).collect()
}

/// Standard output of a program that succeeds.
fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_and_rows() {
        let result = json!({"gbps": 1.25, "min": 1.0, "gbps_of_starts": [1.0, 1.25], "ratio_memcpy": 0.125});
        let result = result.as_object().cloned().unwrap_or_default();
        assert_eq!(summary(&result), "gbps 1.25, min 1.00, ratio_memcpy 0.12");
        let goal = |bound, limit| Goal { field: "gbps", bound, limit };
        assert!(reached(&goal(Bound::AtLeast, 1.25), &result) && !reached(&goal(Bound::AtLeast, 1.26), &result));
        assert!(reached(&goal(Bound::AtMost, 1.25), &result) && !reached(&goal(Bound::AtMost, 1.24), &result));
        assert!(!reached(&Goal { field: "none", ..goal(Bound::AtMost, 9.0) }, &result));
        assert_eq!(text(&goal(Bound::AtLeast, 2.5)), "gbps ≥ 2.5");
    }

    #[test]
    fn numbers() {
        let texts: Vec<String> =
            [json!(100_000), json!(123.4), json!(12.34), json!(1.234), Value::Null].iter().map(number).collect();
        assert_eq!(texts, ["100000", "123", "12.3", "1.23", "null"]);
    }
}
