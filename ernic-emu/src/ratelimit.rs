//! Rate limits for log lines that a guest or a client can cause.
//!
//! A guest can ring a doorbell of a queue that does not exist a million times a second. The first few lines tell what is
//! wrong; the rest would only fill the disk and cost time. [`warn_limited!`](crate::warn_limited) gives each call site
//! its own [`RateLimit`]: [`BURST`] lines per [`INTERVAL`], then silence, and the first line of a later interval carries a
//! field `suppressed` with the number of lines that were left out.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Lines that one call site may write per [`INTERVAL`]. The shape (a burst, then a pause) is `printk_ratelimit`'s: 10 per 5 s.
pub const BURST: u64 = 10;
/// Length of one interval.
pub const INTERVAL: Duration = Duration::from_secs(5);

/// Bits of the state word that count the events of the interval; the others hold the interval's number plus one.
const COUNT_BITS: u32 = 32;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// Allows [`BURST`] events per [`INTERVAL`] and counts the others. Lock-free; meant for a `static`.
///
/// ```
/// use ernic_emu::ratelimit::{BURST, RateLimit};
/// static LIMIT: RateLimit = RateLimit::new();
/// let allowed = (0..100).filter(|_| LIMIT.allow().is_some()).count();
/// assert!(allowed >= usize::try_from(BURST).unwrap() && allowed < 100);
/// ```
#[derive(Debug, Default)]
pub struct RateLimit {
    /// Interval number + 1 in the upper half (0: never used), events of that interval in the lower half.
    state: AtomicU64,
    /// Events refused since the last one that was allowed.
    suppressed: AtomicU64,
}

impl RateLimit {
    /// A limit that has seen nothing yet.
    pub const fn new() -> Self {
        Self { state: AtomicU64::new(0), suppressed: AtomicU64::new(0) }
    }

    /// Counts one event. `Some(n)`: log it, and say that `n` events before it were suppressed; `None`: stay silent.
    pub fn allow(&self) -> Option<u64> {
        static START: OnceLock<Instant> = OnceLock::new();
        self.allow_at(START.get_or_init(Instant::now).elapsed())
    }

    /// [`RateLimit::allow`] with the time since some fixed start.
    fn allow_at(&self, now: Duration) -> Option<u64> {
        let interval = now.as_secs() / INTERVAL.as_secs() + 1;
        let mut old = self.state.load(Ordering::Relaxed);
        let count = loop {
            let count = if old >> COUNT_BITS == interval { old & COUNT_MASK } else { 0 };
            let new = interval << COUNT_BITS | (count + 1).min(COUNT_MASK);
            match self.state.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break count,
                Err(current) => old = current,
            }
        };
        if count < BURST {
            Some(self.suppressed.swap(0, Ordering::Relaxed))
        } else {
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

/// `tracing::event!` at a level, limited per call site; see [`crate::ratelimit`].
#[doc(hidden)]
#[macro_export]
macro_rules! event_limited {
    ($level:expr, $($arg:tt)+) => {{
        static LIMIT: $crate::ratelimit::RateLimit = $crate::ratelimit::RateLimit::new();
        match LIMIT.allow() {
            Some(0) => ::tracing::event!($level, $($arg)+),
            Some(suppressed) => ::tracing::event!($level, suppressed, $($arg)+),
            None => {}
        }
    }};
}

/// `tracing::warn!` that one call site may emit 10 times per 5 s: for what a guest or a client can cause. The first line
/// after a silence has a field `suppressed`, the number of lines left out.
#[macro_export]
macro_rules! warn_limited {
    ($($arg:tt)+) => { $crate::event_limited!(::tracing::Level::WARN, $($arg)+) };
}

/// `tracing::info!` with the limit of [`warn_limited!`](crate::warn_limited).
#[macro_export]
macro_rules! info_limited {
    ($($arg:tt)+) => { $crate::event_limited!(::tracing::Level::INFO, $($arg)+) };
}

/// `tracing::debug!` with the limit of [`warn_limited!`](crate::warn_limited).
#[macro_export]
macro_rules! debug_limited {
    ($($arg:tt)+) => { $crate::event_limited!(::tracing::Level::DEBUG, $($arg)+) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_per_interval_then_the_number_left_out() {
        let limit = RateLimit::new();
        let at = |s| limit.allow_at(Duration::from_secs(s));
        for _ in 0..BURST {
            assert_eq!(at(0), Some(0));
        }
        for _ in 0..7 {
            assert_eq!(at(4), None);
        }
        assert_eq!(at(5), Some(7), "the next interval says what was lost");
        assert_eq!(at(6), Some(0), "and says it once");
        for _ in 2..BURST {
            assert_eq!(at(9), Some(0));
        }
        assert_eq!(at(9), None);
        assert_eq!(at(1000), Some(1));
    }

    #[test]
    fn threads_together_get_one_burst() {
        let limit = RateLimit::new();
        let allowed = AtomicU64::new(0);
        std::thread::scope(|s| {
            for _ in 0..4 {
                s.spawn(|| {
                    for _ in 0..1000 {
                        if limit.allow_at(Duration::from_secs(1)).is_some() {
                            allowed.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!(allowed.load(Ordering::Relaxed), BURST);
        assert_eq!(limit.allow_at(Duration::from_secs(7)), Some(4000 - BURST));
    }
}
