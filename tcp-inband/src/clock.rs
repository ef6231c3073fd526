//! The stack's clock, which stands still while the guest does not let us send.

use std::time::Duration;

use smoltcp::time::Instant;

/// A wait for room up to this long is ordinary queueing and counts; of a longer one only this much does. Far below
/// smoltcp's least retransmission timeout (1 s, `RTTE_MIN_RTO`), far above the time between two doorbells of a busy guest.
const COUNTED: Duration = Duration::from_millis(1);

#[derive(Debug)]
pub(crate) struct Clock {
    /// Latest time that was passed in.
    real: Duration,
    /// How much of it the stack does not know of.
    stopped: Duration,
    blocked: Option<Duration>,
}

impl Clock {
    pub(crate) fn new(now: Duration) -> Self {
        Self { real: now, stopped: Duration::ZERO, blocked: None }
    }

    /// Time never runs backwards, whatever the caller passes.
    pub(crate) fn advance(&mut self, now: Duration) {
        self.real = self.real.max(now);
    }

    pub(crate) fn real(&self) -> Duration {
        self.real
    }

    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    pub(crate) fn block(&mut self) {
        self.blocked.get_or_insert(self.real);
    }

    pub(crate) fn unblock(&mut self) {
        if let Some(since) = self.blocked.take() {
            self.stopped += (self.real - since).saturating_sub(COUNTED);
        }
    }

    /// Now, for the stack.
    pub(crate) fn now(&self) -> Instant {
        let real = self.blocked.map_or(self.real, |since| self.real.min(since + COUNTED));
        instant(real - self.stopped)
    }

    /// When the stack's clock will show `at`, if it goes on.
    pub(crate) fn when(&self, at: Instant) -> Duration {
        self.stopped + Duration::from_micros(u64::try_from(at.total_micros()).unwrap_or(0))
    }
}

/// smoltcp counts microseconds in an i64: 292,000 years.
fn instant(since_origin: Duration) -> Instant {
    Instant::from_micros(i64::try_from(since_origin.as_micros()).unwrap_or(i64::MAX >> 1))
}

/// A policy's duration in smoltcp's type.
pub(crate) fn span(duration: Duration) -> smoltcp::time::Duration {
    // A thousand years never overflow when added to a time.
    smoltcp::time::Duration::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).min(1 << 54))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_wait_counts_for_a_millisecond_and_a_short_one_in_full() {
        let ms = Duration::from_millis;
        let mut clock = Clock::new(ms(100));
        clock.advance(ms(200));
        clock.block();
        clock.advance(ms(5_000));
        assert_eq!(clock.now(), Instant::from_millis(201));
        clock.block();
        clock.unblock();
        assert_eq!(clock.now(), Instant::from_millis(201));
        clock.advance(ms(5_100));
        assert_eq!(clock.now(), Instant::from_millis(301));
        assert_eq!(clock.when(Instant::from_millis(401)), ms(5_200));

        clock.block();
        clock.advance(ms(5_100) + Duration::from_micros(300));
        clock.unblock();
        assert_eq!(clock.now(), Instant::from_micros(301_300));
    }

    #[test]
    fn time_does_not_run_backwards() {
        let mut clock = Clock::new(Duration::from_secs(5));
        clock.advance(Duration::from_secs(3));
        assert_eq!(clock.now(), Instant::from_secs(5));
        assert_eq!(clock.real(), Duration::from_secs(5));
    }
}
