//! What the server says that it has done, to hold its answers against.

use crate::{
    ClientError,
    s3::{Client, Request},
};

/// AIStor's page with the numbers of operations ("Confirm a transfer used RDMA" in "Transfer Objects over RDMA").
const OPERATIONS: &str = "minio/metrics/v3/api/rdma";

/// Page with everything else, where the server has it.
const EVERYTHING: &str = "metrics";

/// Counters of a server. What it does not say is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// `minio_api_rdma_read_ops_total`: GetObject by RDMA.
    pub read_ops: u64,
    /// `minio_api_rdma_write_ops_total`: PutObject and UploadPart by RDMA.
    pub write_ops: u64,
    /// `ernic_rdma_bytes_total{operation="read"}`: their bytes.
    pub read_bytes: Option<u64>,
    /// `ernic_rdma_bytes_total{operation="write"}`: their bytes.
    pub write_bytes: Option<u64>,
    /// `ernic_http_body_operations_total{operation="read"}`: GetObject with a body.
    pub body_reads: Option<u64>,
    /// `ernic_http_body_operations_total{operation="write"}`: PutObject and UploadPart with a body.
    pub body_writes: Option<u64>,
    /// `ernic_store_objects`: objects, now.
    pub objects: Option<u64>,
    /// `ernic_store_uploads`: multipart uploads, now.
    pub uploads: Option<u64>,
}

impl Counters {
    /// Asks the server. `None` if it has no such page, or lets nobody see it.
    pub fn read(client: &mut Client) -> Result<Option<Self>, ClientError> {
        let Some(operations) = page(client, OPERATIONS)? else { return Ok(None) };
        let everything = page(client, EVERYTHING)?.unwrap_or_default();
        let due = |name: &'static str| {
            value(&operations, name, &[]).ok_or_else(|| ClientError::BadAnswer(format!("no {name} in /{OPERATIONS}")))
        };
        let of = |name, operation| value(&everything, name, &[("operation", operation)]);
        Ok(Some(Self {
            read_ops: due("minio_api_rdma_read_ops_total")?,
            write_ops: due("minio_api_rdma_write_ops_total")?,
            read_bytes: of("ernic_rdma_bytes_total", "read"),
            write_bytes: of("ernic_rdma_bytes_total", "write"),
            body_reads: of("ernic_http_body_operations_total", "read"),
            body_writes: of("ernic_http_body_operations_total", "write"),
            objects: value(&everything, "ernic_store_objects", &[]),
            uploads: value(&everything, "ernic_store_uploads", &[]),
        }))
    }

    /// What rose between `before` and this, and fell: one text for each counter of operations or bytes that did not rise by
    /// exactly what `due` says.
    #[must_use]
    pub fn differences(&self, before: &Self, due: &Rise, exactly: bool) -> Vec<String> {
        let some = |now: u64, then: u64| (Some(now), Some(then));
        let rows = [
            ("RDMA GETs", some(self.read_ops, before.read_ops), due.read_ops),
            ("RDMA PUTs", some(self.write_ops, before.write_ops), due.write_ops),
            ("bytes of RDMA GETs", (self.read_bytes, before.read_bytes), due.read_bytes),
            ("bytes of RDMA PUTs", (self.write_bytes, before.write_bytes), due.write_bytes),
            ("body GETs", (self.body_reads, before.body_reads), due.body_reads),
            ("body PUTs", (self.body_writes, before.body_writes), due.body_writes),
        ];
        let mut texts = Vec::new();
        for (what, (now, then), due) in rows {
            let (Some(now), Some(then)) = (now, then) else { continue };
            let rose = i128::from(now) - i128::from(then);
            let due = i128::from(due);
            if rose < due || exactly && rose != due {
                texts.push(format!("the server counted {rose} {what} where {due} were made"));
            }
        }
        texts
    }
}

/// By how much counters are to rise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rise {
    /// GetObject by RDMA.
    pub read_ops: u64,
    /// PutObject and UploadPart by RDMA.
    pub write_ops: u64,
    /// Bytes of the former.
    pub read_bytes: u64,
    /// Bytes of the latter.
    pub write_bytes: u64,
    /// GetObject with a body.
    pub body_reads: u64,
    /// PutObject and UploadPart with a body.
    pub body_writes: u64,
}

fn page(client: &mut Client, path: &str) -> Result<Option<String>, ClientError> {
    let answer = client.call(&Request::new("GET", path, ""), None)?;
    if answer.status != 200 {
        return Ok(None);
    }
    String::from_utf8(answer.document).map(Some).map_err(|_| ClientError::BadAnswer(format!("/{path} is not UTF-8")))
}

/// The sum of a metric's samples that have these labels, in Prometheus' text format. `None` if there is none.
fn value(page: &str, name: &str, labels: &[(&str, &str)]) -> Option<u64> {
    let mut sum = None;
    for line in page.lines() {
        let Some(rest) = line.strip_prefix(name) else { continue };
        let (has, rest) = match rest.strip_prefix('{').and_then(|rest| rest.split_once('}')) {
            Some(split) => split,
            None => ("", rest),
        };
        let wanted = |(label, value): &(&str, &str)| has.split(',').any(|pair| pair == format!("{label}=\"{value}\""));
        // A longer name that begins alike has no space here.
        let Some(number) = rest.strip_prefix(' ').filter(|_| labels.iter().all(wanted)) else { continue };
        let number = number.split(' ').next().and_then(whole)?;
        sum = Some(sum.unwrap_or(0) + number);
    }
    sum
}

/// A number that is whole, though it may be written with a point.
fn whole(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if fraction.bytes().all(|digit| digit == b'0') { whole.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "\
# HELP minio_api_rdma_read_ops GetObject requests served by RDMA.
# TYPE minio_api_rdma_read_ops counter
minio_api_rdma_read_ops_total 12
minio_api_rdma_read_ops_total_more 99
ernic_rdma_bytes_total{operation=\"read\"} 4096
ernic_rdma_bytes_total{operation=\"write\",server=\"a\"} 10
ernic_rdma_bytes_total{operation=\"write\",server=\"b\"} 7.0 1700000000000
half 0.5
";

    #[test]
    fn samples_are_summed_by_name_and_label() {
        assert_eq!(value(PAGE, "minio_api_rdma_read_ops_total", &[]), Some(12));
        assert_eq!(value(PAGE, "ernic_rdma_bytes_total", &[("operation", "read")]), Some(4096));
        assert_eq!(value(PAGE, "ernic_rdma_bytes_total", &[("operation", "write")]), Some(17));
        assert_eq!(value(PAGE, "ernic_rdma_bytes_total", &[("operation", "none")]), None);
        assert_eq!(value(PAGE, "minio_api_rdma_read_ops", &[]), None);
        assert_eq!(value(PAGE, "half", &[]), None);
    }

    #[test]
    fn counters_must_rise_by_what_was_made() {
        let before = Counters { read_ops: 5, write_ops: 1, read_bytes: Some(50), ..Counters::default() };
        let due = Rise { read_ops: 2, read_bytes: 8192, body_reads: 3, ..Rise::default() };
        let after = Counters { read_ops: 7, read_bytes: Some(8242), ..before };
        // What the server does not count is not checked.
        assert_eq!(after.differences(&before, &due, true), Vec::<String>::new());
        let fewer = Counters { read_bytes: Some(8241), ..after };
        assert_eq!(
            fewer.differences(&before, &due, false),
            ["the server counted 8191 bytes of RDMA GETs where 8192 were made"]
        );
        let more = Counters { write_ops: 2, ..after };
        assert_eq!(more.differences(&before, &due, true), ["the server counted 1 RDMA PUTs where 0 were made"]);
        assert_eq!(more.differences(&before, &due, false), Vec::<String>::new());
        let back = Counters { read_ops: 0, ..after };
        assert_eq!(back.differences(&before, &due, false), ["the server counted -5 RDMA GETs where 2 were made"]);
    }
}
