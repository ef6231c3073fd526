//! Percentiles and medians, and how they are written.

use std::time::Duration;

use serde_json::{Map, Value, json};

/// Latencies of one run, or of several.
#[derive(Debug, Default, Clone)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Adds one latency.
    pub fn push(&mut self, sample: Duration) {
        self.0.push(sample.as_secs_f64() * 1e6);
    }

    /// Adds others.
    pub fn extend(&mut self, others: &Self) {
        self.0.extend_from_slice(&others.0);
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The middle one (nearest rank).
    #[must_use]
    pub fn median(&self) -> Duration {
        Duration::try_from_secs_f64(self.percentile(50) / 1e6).unwrap_or_default()
    }

    /// Microseconds below which `percent` of the samples lie (nearest rank).
    #[must_use]
    pub fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted.get(rank).copied().unwrap_or(f64::NAN)
    }
}

/// The middle of some figures; the mean of the two middle ones of an even number.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle), middle.checked_sub(1).and_then(|i| sorted.get(i))) {
        (Some(&high), Some(&low)) if sorted.len().is_multiple_of(2) => f64::midpoint(low, high),
        (Some(&value), _) => value,
        (None, _) => f64::NAN,
    }
}

/// A latency result: the median of the starts for each percentile, and the p50 of every start.
#[must_use]
pub fn latency(starts: &[Samples]) -> Map<String, Value> {
    let of = |percent| median(&starts.iter().map(|s| s.percentile(percent)).collect::<Vec<_>>());
    let mut result = Map::new();
    for percent in [50, 90, 99] {
        result.insert(format!("p{percent}_us"), round(of(percent)));
    }
    result.insert("n".into(), json!(starts.iter().map(Samples::len).sum::<usize>()));
    let each: Vec<Value> = starts.iter().map(|s| round(s.percentile(50))).collect();
    result.insert("p50_us_of_starts".into(), Value::Array(each));
    result
}

/// A bandwidth result in GB/s (10⁹ bytes a second): median, least and greatest of the starts, and all of them.
#[must_use]
pub fn bandwidth(gbps: &[f64]) -> Map<String, Value> {
    let mut result = Map::new();
    result.insert("gbps".into(), round(median(gbps)));
    result.insert("min".into(), round(gbps.iter().copied().fold(f64::INFINITY, f64::min)));
    result.insert("max".into(), round(gbps.iter().copied().fold(f64::NEG_INFINITY, f64::max)));
    result.insert("gbps_of_starts".into(), gbps.iter().map(|v| round(*v)).collect());
    result
}

/// A result in answers a second: median, least and greatest of the starts, and all of them.
#[must_use]
pub fn rate(rates: &[f64]) -> Map<String, Value> {
    let mut result = Map::new();
    result.insert("rate".into(), round(median(rates)));
    result.insert("min".into(), round(rates.iter().copied().fold(f64::INFINITY, f64::min)));
    result.insert("max".into(), round(rates.iter().copied().fold(f64::NEG_INFINITY, f64::max)));
    result.insert("rate_of_starts".into(), rates.iter().map(|v| round(*v)).collect());
    result
}

/// Four significant decimals are more than the machine deserves.
#[must_use]
pub fn round(value: f64) -> Value {
    if value.is_finite() { json!((value * 1e4).round() / 1e4) } else { Value::Null }
}

/// GB/s of `bytes` in `time`.
#[must_use]
pub fn gbps(bytes: usize, time: Duration) -> f64 {
    #[allow(clippy::cast_precision_loss, reason = "sizes are far below 2^52")]
    let bytes = bytes as f64;
    bytes / time.as_secs_f64() / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let mut samples = Samples::default();
        for us in (1..=100).rev() {
            samples.push(Duration::from_micros(us));
        }
        let near = |percent, us: f64| (samples.percentile(percent) - us).abs() < 1e-6;
        assert!(near(50, 50.0) && near(99, 99.0) && near(100, 100.0) && near(1, 1.0));
        assert!(Samples::default().percentile(50).is_nan());
    }

    #[test]
    fn medians() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0]) - 2.5).abs() < 1e-9);
        assert!(median(&[]).is_nan());
    }
}
