//! The last warnings and errors of the log, for whoever asks later.

use std::{
    collections::VecDeque,
    fmt::{self, Write as _},
    sync::{Arc, Mutex, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context};

/// Lines that are kept.
pub const LINES: usize = 16;
/// Bytes that are kept of a line's text; a guest may have a say in them.
pub const LENGTH: usize = 400;

/// A warning or an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// `WARN` or `ERROR`.
    pub level: String,
    /// The module that it comes from.
    pub target: String,
    /// What the log said, with its fields; at most [`LENGTH`] bytes.
    pub message: String,
}

/// The last [`LINES`] of them. Clones are one. As a layer of the log, it takes them from there.
#[derive(Debug, Clone, Default)]
pub struct Recent(Arc<Mutex<VecDeque<Line>>>);

impl Recent {
    /// The lines, the oldest first.
    #[must_use]
    pub fn lines(&self) -> Vec<Line> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    fn push(&self, line: Line) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }
}

impl<S: Subscriber> Layer<S> for Recent {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let metadata = event.metadata();
        if *metadata.level() > Level::WARN {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.push(Line {
            unix_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX),
            level: metadata.level().to_string(),
            target: metadata.target().to_owned(),
            message: text.finish(),
        });
    }
}

/// A message and its fields, as the log writes them, cut at [`LENGTH`].
#[derive(Default)]
struct Text {
    message: Bounded,
    fields: Bounded,
}

impl Text {
    fn finish(mut self) -> String {
        let _ = self.message.write_str(&self.fields.0);
        self.message.0
    }
}

impl Visit for Text {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "message" {
            let _ = self.message.write_str(value);
        } else {
            self.record_debug(field, &value);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // What does not fit is left out.
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, " {}={value:?}", field.name())
        };
    }
}

/// A string that takes no more than [`LENGTH`] bytes, in whole characters.
#[derive(Default)]
struct Bounded(String);

impl fmt::Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = LENGTH - self.0.len();
        let end = (0..=room.min(text.len())).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        self.0.push_str(&text[..end]);
        if end == text.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    fn logged(log: impl FnOnce()) -> Vec<Line> {
        let recent = Recent::default();
        tracing::subscriber::with_default(tracing_subscriber::registry().with(recent.clone()), log);
        recent.lines()
    }

    #[test]
    fn warnings_and_errors_with_their_fields() {
        let lines = logged(|| {
            tracing::info!("not this");
            tracing::warn!(queue = 3, text = "a b", "bad {}", "doorbell");
            tracing::error!(error = %"no room", target_field = ?"x");
        });
        let texts: Vec<_> = lines.iter().map(|line| (line.level.as_str(), line.message.as_str())).collect();
        assert_eq!(
            texts,
            [("WARN", "bad doorbell queue=3 text=\"a b\""), ("ERROR", " error=no room target_field=\"x\"")]
        );
        assert!(lines.iter().all(|line| line.target.ends_with("recent::tests") && line.unix_ms > 1_600_000_000_000));
    }

    #[test]
    fn only_so_many_and_only_so_long() {
        let lines = logged(|| {
            for i in 0..LINES + 3 {
                tracing::warn!("line {i}");
            }
        });
        assert_eq!((lines.len(), lines[0].message.as_str()), (LINES, "line 3"));
        let lines = logged(|| {
            tracing::warn!(more = "ä".repeat(LENGTH), "{}x", "ä".repeat(LENGTH / 2 - 10));
            tracing::warn!("{}", "ä".repeat(LENGTH));
            tracing::warn!("x{}", "ä".repeat(LENGTH));
        });
        assert!(lines.iter().all(|line| line.message.len() <= LENGTH && line.message.len() >= LENGTH - 1));
        assert!(lines[0].message.contains("äx more=\"ä") && lines[2].message.starts_with("xä"));
    }
}
