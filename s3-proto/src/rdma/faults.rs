//! Faults on demand, so that the authors of clients can try what theirs do about them.

use std::{fmt, num::NonZeroU64, str::FromStr, time::Duration};

/// Faults that a service makes on purpose; none by default. Written as a comma-separated list of [`Fault`]s.
///
/// What is counted are transfers: requests with a well-formed token that have come so far that the client's memory is to
/// be reached, from 1, over all connections. A request that S3 refuses before that is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

/// One fault: `ACTION[=TIME][@WHEN]`.
///
/// | written | does |
/// |---|---|
/// | `decline` | declines the transfer (501) |
/// | `fail` | lets it fail after half of its bytes (503) |
/// | `short` | moves one byte less; a GetObject counts what it moved and succeeds, a PutObject or UploadPart fails (503) |
/// | `no-reply` | leaves the `x-amz-rdma-reply` header out of the answer |
/// | `delay=TIME` | waits before the transfer |
/// | `link-down=TIME` | takes the link down before the transfer, and up again after the time |
///
/// `TIME` is a number with `us`, `ms` or `s`. `WHEN` is `N`, the `N`-th transfer, or `every:N`, each `N`-th; without it the
/// fault is made at every transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// What is done.
    pub action: Action,
    /// At which transfers.
    pub when: When,
}

/// What a [`Fault`] does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The transfer is declined.
    Decline,
    /// It fails after half of its bytes.
    Fail,
    /// It moves one byte less.
    Short,
    /// The answer has no reply header.
    NoReply,
    /// It begins later.
    Delay(Duration),
    /// The link goes down for a time.
    LinkDown(Duration),
}

/// At which transfers a [`Fault`] is made, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At one.
    Nth(NonZeroU64),
    /// At each multiple; 1 is all.
    Every(NonZeroU64),
}

/// Why a fault is refused. The text is complete: it holds the fault and says what to write.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// No such action.
    #[error(
        "bad fault '{0}': use decline, fail, short, no-reply, delay=TIME or link-down=TIME, and @N or @every:N behind it"
    )]
    Action(String),
    /// An action without the time that it needs, or with one that it does not take, or with a bad one.
    #[error("bad fault '{fault}': {action}")]
    Time {
        /// The fault as written.
        fault: String,
        /// What its action takes.
        action: &'static str,
    },
    /// A bad `@`.
    #[error("bad fault '{0}': behind @ stands which transfer, a number from 1, or every: and a number from 1")]
    When(String),
}

impl Faults {
    /// These faults. Those that fall on one transfer are all made; of `decline`, `fail` and `short` the first of these three
    /// shows.
    pub fn new(faults: impl IntoIterator<Item = Fault>) -> Self {
        Self(faults.into_iter().collect())
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The faults, as given.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.0.iter()
    }

    /// What is done at transfer `number`, from 1.
    pub(super) fn at(&self, number: u64) -> impl Iterator<Item = &Fault> {
        self.0.iter().filter(move |fault| fault.when.is(number))
    }
}

impl When {
    fn is(self, number: u64) -> bool {
        match self {
            Self::Nth(n) => n.get() == number,
            Self::Every(n) => number.is_multiple_of(n.get()),
        }
    }
}

impl FromStr for Faults {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl FromStr for Fault {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let (what, when) = text.split_once('@').map_or((text, None), |(what, when)| (what, Some(when)));
        let when = match when {
            None => When::Every(NonZeroU64::MIN),
            Some(when) => {
                let number = |digits: &str| digits.parse().map_err(|_| FaultError::When(text.to_owned()));
                match when.strip_prefix("every:") {
                    Some(n) => When::Every(number(n)?),
                    None => When::Nth(number(when)?),
                }
            }
        };
        let (name, value) = what.split_once('=').map_or((what, None), |(name, value)| (name, Some(value)));
        let wrong = |action| FaultError::Time { fault: text.to_owned(), action };
        let timed =
            |action: fn(Duration) -> Action, takes| value.and_then(time).map(action).ok_or_else(|| wrong(takes));
        let plain = |action, takes| if value.is_some() { Err(wrong(takes)) } else { Ok(action) };
        let action = match name {
            "decline" => plain(Action::Decline, "decline takes no value")?,
            "fail" => plain(Action::Fail, "fail takes no value")?,
            "short" => plain(Action::Short, "short takes no value")?,
            "no-reply" => plain(Action::NoReply, "no-reply takes no value")?,
            "delay" => timed(Action::Delay, "delay needs a time, as in delay=250ms")?,
            "link-down" => timed(Action::LinkDown, "link-down needs a time, as in link-down=2s")?,
            _ => return Err(FaultError::Action(text.to_owned())),
        };
        Ok(Self { action, when })
    }
}

/// A whole number with a unit.
fn time(text: &str) -> Option<Duration> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.parse().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()))?;
    match &text[digits.len()..] {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

/// As it is parsed.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.action)?;
        match self.when {
            When::Nth(n) => write!(f, "@{n}"),
            When::Every(NonZeroU64::MIN) => Ok(()),
            When::Every(n) => write!(f, "@every:{n}"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |f: &mut fmt::Formatter<'_>, name, time: &Duration| {
            let micros = time.as_micros();
            match (micros % 1_000_000, micros % 1000) {
                (0, _) => write!(f, "{name}={}s", micros / 1_000_000),
                (_, 0) => write!(f, "{name}={}ms", micros / 1000),
                _ => write!(f, "{name}={micros}us"),
            }
        };
        match self {
            Self::Decline => f.write_str("decline"),
            Self::Fail => f.write_str("fail"),
            Self::Short => f.write_str("short"),
            Self::NoReply => f.write_str("no-reply"),
            Self::Delay(by) => time(f, "delay", by),
            Self::LinkDown(by) => time(f, "link-down", by),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_every_form() {
        let n = |n| NonZeroU64::new(n).unwrap();
        for (text, action, when) in [
            ("decline", Action::Decline, When::Every(n(1))),
            ("decline@1", Action::Decline, When::Nth(n(1))),
            ("fail@every:3", Action::Fail, When::Every(n(3))),
            ("short@12", Action::Short, When::Nth(n(12))),
            ("no-reply@every:2", Action::NoReply, When::Every(n(2))),
            ("delay=250ms@2", Action::Delay(Duration::from_millis(250)), When::Nth(n(2))),
            ("delay=15us", Action::Delay(Duration::from_micros(15)), When::Every(n(1))),
            ("link-down=2s@4", Action::LinkDown(Duration::from_secs(2)), When::Nth(n(4))),
        ] {
            let fault = Fault { action, when };
            assert_eq!(text.parse(), Ok(fault));
            assert_eq!(fault.to_string(), text);
        }
        let list: Faults = "decline@2,delay=1ms,fail@every:2".parse().unwrap();
        let at = |number| list.at(number).map(Fault::to_string).collect::<Vec<_>>();
        assert_eq!(at(1), ["delay=1ms"]);
        assert_eq!(at(2), ["decline@2", "delay=1ms", "fail@every:2"]);
        assert_eq!(at(4), ["delay=1ms", "fail@every:2"]);
        assert_eq!(list, Faults::new(list.iter().copied()));
        assert!(!list.is_empty() && Faults::default().is_empty());
    }

    #[test]
    fn says_what_is_wrong() {
        for (text, error) in [
            (
                "",
                "bad fault '': use decline, fail, short, no-reply, delay=TIME or link-down=TIME, and @N or @every:N behind it",
            ),
            (
                "decline,",
                "bad fault '': use decline, fail, short, no-reply, delay=TIME or link-down=TIME, and @N or @every:N behind it",
            ),
            (
                "explode@3",
                "bad fault 'explode@3': use decline, fail, short, no-reply, delay=TIME or link-down=TIME, and @N or @every:N \
                 behind it",
            ),
            ("fail=1s", "bad fault 'fail=1s': fail takes no value"),
            ("delay", "bad fault 'delay': delay needs a time, as in delay=250ms"),
            ("delay=@2", "bad fault 'delay=@2': delay needs a time, as in delay=250ms"),
            ("delay=+1s", "bad fault 'delay=+1s': delay needs a time, as in delay=250ms"),
            ("delay=5", "bad fault 'delay=5': delay needs a time, as in delay=250ms"),
            ("delay=1.5s", "bad fault 'delay=1.5s': delay needs a time, as in delay=250ms"),
            ("link-down=2h", "bad fault 'link-down=2h': link-down needs a time, as in link-down=2s"),
            (
                "fail@0",
                "bad fault 'fail@0': behind @ stands which transfer, a number from 1, or every: and a number from 1",
            ),
            (
                "fail@every:x",
                "bad fault 'fail@every:x': behind @ stands which transfer, a number from 1, or every: and a number from 1",
            ),
        ] {
            assert_eq!(text.parse::<Faults>().map_err(|error| error.to_string()), Err(error.to_owned()), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn takes_any_text_and_reads_what_it_writes(text in "[a-z:=@,0-9-]{0,30}|.*") {
            if let Ok(faults) = text.parse::<Faults>() {
                for fault in faults.iter() {
                    prop_assert_eq!(fault.to_string().parse(), Ok(*fault));
                }
            }
        }
    }
}
