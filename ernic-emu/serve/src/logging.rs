//! The log: what is written, and how.
//!
//! Standard error, one event a line. The insides of the HTTP and S3 libraries are silent unless asked for by name: what
//! they say is caused by the guest (a bad signature is an error to them), so that a guest could fill the host's disk.

use std::{env, io, io::IsTerminal, str::FromStr};

use clap::ValueEnum;
use tracing_subscriber::{
    Layer, Registry,
    filter::{LevelFilter, Targets},
    layer::SubscriberExt,
    util::{SubscriberInitExt, TryInitError},
};

use crate::recent::Recent;

/// Modules that speak only when they are named in the filter.
const SILENT: [&str; 3] = ["s3s", "hyper", "smoltcp"];

/// How a log line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// What is logged: a level for everything, and levels for single modules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogFilter {
    level: LevelFilter,
    modules: Vec<(String, LevelFilter)>,
}

/// Why a filter is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LogFilterError {
    /// Not a level.
    #[error("bad level '{0}': use off, error, warn, info, debug or trace, or module=level")]
    Level(String),
    /// Two levels for everything, or for one module.
    #[error("'{0}' comes after another level for the same")]
    Twice(String),
}

impl FromStr for LogFilter {
    type Err = LogFilterError;

    /// Reads `level` or `module=level`, several of them separated by commas. Where no general level is given, it is
    /// `info`.
    fn from_str(text: &str) -> Result<Self, LogFilterError> {
        let mut general = None;
        let mut modules: Vec<(String, LevelFilter)> = Vec::new();
        for item in text.split(',') {
            let (module, name) = item.split_once('=').map_or((None, item), |(module, name)| (Some(module), name));
            let level = level(name).ok_or_else(|| LogFilterError::Level(item.to_owned()))?;
            let twice = match module {
                None => general.replace(level).is_some(),
                Some("") => return Err(LogFilterError::Level(item.to_owned())),
                Some(module) => {
                    let twice = modules.iter().any(|(known, _)| known == module);
                    modules.push((module.to_owned(), level));
                    twice
                }
            };
            if twice {
                return Err(LogFilterError::Twice(item.to_owned()));
            }
        }
        Ok(Self { level: general.unwrap_or(LevelFilter::INFO), modules })
    }
}

/// By name only: the library would also take numbers.
fn level(name: &str) -> Option<LevelFilter> {
    let known = ["off", "error", "warn", "info", "debug", "trace"].iter().any(|known| name.eq_ignore_ascii_case(known));
    known.then(|| name.parse().ok())?
}

impl LogFilter {
    /// The general level raised by `steps`: off, error, warn, info, debug, trace.
    #[must_use]
    pub fn raised(mut self, steps: u8) -> Self {
        for _ in 0..steps {
            self.level = match self.level {
                LevelFilter::OFF => LevelFilter::ERROR,
                LevelFilter::ERROR => LevelFilter::WARN,
                LevelFilter::WARN => LevelFilter::INFO,
                LevelFilter::INFO => LevelFilter::DEBUG,
                _ => return Self { level: LevelFilter::TRACE, ..self },
            };
        }
        self
    }

    fn targets(&self) -> Targets {
        // A later level for the same module replaces the earlier.
        Targets::new()
            .with_default(self.level)
            .with_targets(SILENT.map(|module| (module, LevelFilter::OFF)))
            .with_targets(self.modules.iter().map(|(module, level)| (module.as_str(), *level)))
    }
}

/// Starts the log of this process; warnings and errors are also kept, whatever is shown. Errors: it was started before.
pub fn start(filter: &LogFilter, format: LogFormat) -> Result<Recent, TryInitError> {
    let layer = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()))
        // Where standard error is gone there is nobody to tell; the library's own complaint would panic.
        .log_internal_errors(false);
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match format {
        LogFormat::Text => layer.boxed(),
        LogFormat::Json => layer.json().flatten_event(true).boxed(),
    };
    let recent = Recent::default();
    let kept = LogFilter { level: LevelFilter::WARN, modules: Vec::new() };
    tracing_subscriber::registry()
        .with(layer.with_filter(filter.targets()))
        .with(recent.clone().with_filter(kept.targets()))
        .try_init()?;
    Ok(recent)
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    fn filter(text: &str) -> LogFilter {
        text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
    }

    #[test]
    fn levels_and_modules() {
        let targets = filter("warn,ernic_emu=debug").targets();
        assert!(targets.would_enable("ernic", &Level::WARN) && !targets.would_enable("ernic", &Level::INFO));
        assert!(targets.would_enable("ernic_emu::device", &Level::DEBUG));
        assert!(filter("DEBUG").targets().would_enable("ernic", &Level::DEBUG));
        assert!(filter("ernic_emu=trace").targets().would_enable("ernic", &Level::INFO));
        assert!(!filter("off").targets().would_enable("ernic", &Level::ERROR));
    }

    #[test]
    fn libraries_speak_only_when_named() {
        for module in ["s3s::ops", "hyper::proto::h1", "smoltcp::iface"] {
            assert!(!filter("trace").targets().would_enable(module, &Level::ERROR), "{module}");
        }
        assert!(filter("info,s3s=debug").targets().would_enable("s3s::ops", &Level::DEBUG));
        assert!(!filter("info,s3s=debug").targets().would_enable("hyper", &Level::ERROR));
    }

    #[test]
    fn raising_stops_at_the_top() {
        assert_eq!(filter("info").raised(0), filter("info"));
        assert_eq!(filter("off").raised(1), filter("error"));
        assert_eq!(filter("error").raised(2), filter("info"));
        assert_eq!(filter("info,x=warn").raised(200), filter("trace,x=warn"));
    }

    #[test]
    fn refusals_name_the_value() {
        for (text, expected) in [
            ("loud", "bad level 'loud': use off, error, warn, info, debug or trace, or module=level"),
            ("", "bad level '': use off, error, warn, info, debug or trace, or module=level"),
            ("3", "bad level '3': use off, error, warn, info, debug or trace, or module=level"),
            ("info,", "bad level '': use off, error, warn, info, debug or trace, or module=level"),
            ("x=", "bad level 'x=': use off, error, warn, info, debug or trace, or module=level"),
            ("=info", "bad level '=info': use off, error, warn, info, debug or trace, or module=level"),
            ("info,debug", "'debug' comes after another level for the same"),
            ("x=info,x=info", "'x=info' comes after another level for the same"),
        ] {
            assert_eq!(text.parse::<LogFilter>().map_err(|error| error.to_string()), Err(expected.to_owned()));
        }
    }
}
