//! Requests of S3 over TCP, signed or not, and the operations that the tool needs.

use std::{
    fmt,
    net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket},
    str::FromStr,
    time::{Duration, SystemTime},
};

use rdma_token::{Reply, names};

pub use crate::http1::Body;
use crate::{
    ClientError, Refusal, Violation,
    http1::{Connection, During, Head, HttpError},
    sigv4::{self, Credentials, UNSIGNED_PAYLOAD},
    xml::{self, Node},
};

/// Most bytes of a document that is read into memory: a page of 1,000 keys of 1,024 bytes, generously.
const MAX_DOCUMENT: usize = 16 << 20;

/// Most pages of a listing: a server that never comes to an end is broken.
const MAX_PAGES: usize = 100_000;

/// Where the server is. Only plain HTTP: the payload would not pass through TLS, and what does is signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    host: String,
    port: u16,
}

/// The text is no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bad endpoint '{0}': http://HOST[:PORT] is what can be used")]
pub struct BadEndpoint(String);

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let bad = || BadEndpoint(text.to_owned());
        let uri: http::Uri = text.parse().map_err(|_| bad())?;
        let authority = uri.authority().filter(|authority| !authority.as_str().contains('@')).ok_or_else(bad)?;
        let plain = uri.scheme_str() == Some("http") && matches!(uri.path(), "" | "/") && uri.query().is_none();
        // `Authority::port` is silent about a port that is none.
        let port = match authority.as_str().get(authority.host().len()..) {
            Some("") => 80,
            Some(port) => port.strip_prefix(':').and_then(|port| port.parse::<u16>().ok()).ok_or_else(bad)?,
            None => return Err(bad()),
        };
        if !plain || authority.host().is_empty() || port == 0 {
            return Err(bad());
        }
        Ok(Self { host: authority.host().to_owned(), port })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

impl From<SocketAddr> for Endpoint {
    fn from(address: SocketAddr) -> Self {
        let host = match address.ip() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        Self { host, port: address.port() }
    }
}

impl Endpoint {
    /// The `host` header: without the port where it is HTTP's own.
    fn host_header(&self) -> String {
        if self.port == 80 { self.host.clone() } else { format!("{}:{}", self.host, self.port) }
    }

    fn addresses(&self) -> Result<Vec<SocketAddr>, ClientError> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let addresses = (host, self.port).to_socket_addrs();
        addresses.map(Iterator::collect).map_err(|source| ClientError::Connect { endpoint: self.to_string(), source })
    }

    /// The address from which this host reaches the server, by its routes; nothing is sent.
    #[must_use]
    pub fn local_address(&self) -> Option<IpAddr> {
        let address = *self.addresses().ok()?.first()?;
        let any: SocketAddr = if address.is_ipv4() { ([0; 4], 0).into() } else { ([0u16; 8], 0).into() };
        let socket = UdpSocket::bind(any).ok()?;
        socket.connect(address).ok()?;
        Some(socket.local_addr().ok()?.ip())
    }
}

/// How a [`Client`] talks.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the server is.
    pub endpoint: Endpoint,
    /// Who signs; nobody if there are none.
    pub credentials: Option<Credentials>,
    /// Whether a connection is used for more than one request.
    pub keep_alive: bool,
    /// Longest wait for a connection. MinIO's SDKs and hipObject wait 5 s (wire document, section 3).
    pub connect: Duration,
    /// Longest silence of the server before it is given up.
    pub patience: Duration,
}

impl Config {
    /// Unsigned, kept alive, 5 s for a connection and 120 s for an answer: a gibibyte at 10 MB/s.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        let (connect, patience) = (Duration::from_secs(5), Duration::from_secs(120));
        Self { endpoint, credentials: None, keep_alive: true, connect, patience }
    }
}

/// A request.
pub struct Request<'a> {
    /// Method.
    pub method: &'a str,
    /// Path, not encoded: `/bucket/key`.
    pub path: String,
    /// Parameters, not encoded.
    pub query: Vec<(&'a str, String)>,
    /// Headers beside those that every request has, names in lower case.
    pub headers: Vec<(&'a str, String)>,
    /// Content.
    pub body: Body<'a>,
}

impl fmt::Debug for Request<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.path)
    }
}

impl<'a> Request<'a> {
    /// A request about a bucket, or about an object if `key` is not empty.
    #[must_use]
    pub fn new(method: &'a str, bucket: &str, key: &str) -> Self {
        let path = if key.is_empty() { format!("/{bucket}") } else { format!("/{bucket}/{key}") };
        Self { method, path, query: Vec::new(), headers: Vec::new(), body: Body::Empty }
    }

    /// With a parameter.
    #[must_use]
    pub fn query(mut self, name: &'a str, value: impl Into<String>) -> Self {
        self.query.push((name, value.into()));
        self
    }

    /// With a header.
    #[must_use]
    pub fn header(mut self, name: &'a str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// With content.
    #[must_use]
    pub fn body(mut self, body: Body<'a>) -> Self {
        self.body = body;
        self
    }
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// Headers; the names as they came.
    pub headers: Vec<(String, String)>,
    /// The body, where it was not taken elsewhere.
    pub document: Vec<u8>,
    /// Bytes of the body.
    pub length: u64,
}

impl Answer {
    /// The value of a header, whatever the case of its name. Errors: it is there twice, with different values.
    pub fn header(&self, name: &str) -> Result<Option<&str>, Violation> {
        let mut values =
            self.headers.iter().filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str());
        let first = values.next();
        match values.find(|value| Some(*value) != first) {
            Some(_) => Err(Violation::Twice(name.to_owned())),
            None => Ok(first),
        }
    }

    /// The reply header. Errors: it is malformed, or there are two.
    pub fn reply(&self) -> Result<Option<Reply>, Violation> {
        let Some(value) = self.header(names::REPLY)? else { return Ok(None) };
        Reply::parse(value).map(Some).map_err(|_| Violation::MalformedReply(value.to_owned()))
    }

    /// Whether the status is 2xx.
    #[must_use]
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// The S3 error that this is. Errors: those of [`Answer::reply`].
    pub fn refusal(&self) -> Result<Refusal, Violation> {
        let error = Node::parse(&self.document).ok().filter(|node| node.name == "Error").unwrap_or_default();
        let text = |name| error.text_of(name).unwrap_or_default().to_owned();
        Ok(Refusal { status: self.status, code: text("Code"), message: text("Message"), reply: self.reply()? })
    }

    /// Itself, if it is a success. Errors: [`ClientError::Refused`].
    pub fn check(self) -> Result<Self, ClientError> {
        if self.is_success() { Ok(self) } else { Err(self.refusal()?.into()) }
    }

    /// The `etag` header.
    pub fn etag(&self) -> Result<String, ClientError> {
        Ok(self.header("etag")?.ok_or(Violation::NoEtag)?.to_owned())
    }

    fn document(&self, root: &str) -> Result<Node, ClientError> {
        let node = Node::parse(&self.document).map_err(ClientError::BadAnswer)?;
        match node.name == root {
            true => Ok(node),
            false => Err(ClientError::BadAnswer(format!("a document <{}> where <{root}> was due", node.name))),
        }
    }
}

/// Where the content of an answer goes.
pub type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), String>;

/// An object in a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: String,
    /// Its bytes.
    pub size: u64,
}

/// A part that is to become part of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Its number, from 1.
    pub number: u32,
    /// Its ETag, as it came.
    pub etag: String,
    /// Its CRC64NVME in base64.
    pub crc64nvme: String,
}

/// What CompleteMultipartUpload says.
struct Completed {
    etag: String,
    crc64nvme: Option<String>,
}

/// A client of one server. It has one connection at a time and does one request at a time.
#[derive(Debug)]
pub struct Client {
    config: Config,
    addresses: Vec<SocketAddr>,
    connection: Option<Connection>,
    connections: u64,
}

impl Client {
    /// A client that has not connected yet. Errors: the name of the server cannot be resolved.
    pub fn new(config: Config) -> Result<Self, ClientError> {
        let addresses = config.endpoint.addresses()?;
        Ok(Self { config, addresses, connection: None, connections: 0 })
    }

    /// How it talks.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Connections that were made.
    #[must_use]
    pub fn connections(&self) -> u64 {
        self.connections
    }

    /// Sends a request and reads its answer, whatever its status. The body of a success goes to `sink`; that of anything else,
    /// and of everything if there is no sink, into the answer.
    ///
    /// A connection that was kept alive may be closed by the server at the moment it is used: a request that got not one byte
    /// of an answer there is sent again on a new connection, once, if its method may be repeated.
    pub fn call(&mut self, request: &Request<'_>, sink: Option<Sink<'_>>) -> Result<Answer, ClientError> {
        self.exchange(request, sink, None)
    }

    /// As [`Client::call`]; once the request has been sent, `during` is called, and then the answer waited for: two seconds only
    /// if it returns `false`.
    pub fn call_while(
        &mut self,
        request: &Request<'_>,
        during: &mut dyn FnMut() -> bool,
    ) -> Result<Answer, ClientError> {
        self.exchange(request, None, Some(during))
    }

    fn exchange(
        &mut self,
        request: &Request<'_>,
        sink: Option<Sink<'_>>,
        mut during: Option<During<'_>>,
    ) -> Result<Answer, ClientError> {
        let head = self.head(request);
        let mut document = Vec::new();
        let mut sink = sink;
        let mut take = |head: &Head, piece: &[u8]| match &mut sink {
            Some(sink) if (200..300).contains(&head.status) => sink(piece),
            _ if document.len() + piece.len() > MAX_DOCUMENT => Err(format!("a document of over {MAX_DOCUMENT} bytes")),
            _ => {
                document.extend_from_slice(piece);
                Ok(())
            }
        };
        // A session that was prepared and that nobody has heard of ends by itself.
        let mut repeatable = request.method != "POST" || request.path == names::PREPARE;
        loop {
            let (mut connection, fresh) = match self.connection.take().filter(Connection::usable) {
                Some(connection) => (connection, false),
                None => (self.connect()?, true),
            };
            let during = during.as_mut().map(|during| &mut **during as During<'_>);
            let answer = connection.exchange(&head, &request.body, request.method == "HEAD", &mut take, during);
            match answer {
                Ok((head, length)) => {
                    self.connection = Some(connection).filter(|_| self.config.keep_alive);
                    return Ok(Answer { status: head.status, headers: head.headers, document, length });
                }
                Err(HttpError::Closed) if !fresh && repeatable => repeatable = false,
                Err(HttpError::Closed) => {
                    let source = std::io::ErrorKind::UnexpectedEof.into();
                    return Err(ClientError::Broken { during: "waiting for the answer", source });
                }
                Err(HttpError::Io(during, source)) => return Err(ClientError::Broken { during, source }),
                Err(HttpError::Bad(text)) => return Err(ClientError::BadAnswer(text)),
            }
        }
    }

    fn connect(&mut self) -> Result<Connection, ClientError> {
        self.connections += 1;
        let Config { endpoint, connect, patience, .. } = &self.config;
        Connection::open(&self.addresses, *connect, *patience)
            .map_err(|source| ClientError::Connect { endpoint: endpoint.to_string(), source })
    }

    /// The head of a request: all of its headers are signed but those of the connection itself.
    fn head(&self, request: &Request<'_>) -> Vec<u8> {
        let path = sigv4::encode_path(&request.path);
        let query: Vec<_> = request.query.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let query = sigv4::encode_query(&query);
        let mut headers = vec![("host".to_owned(), self.config.endpoint.host_header())];
        let length = match &request.body {
            Body::Empty => matches!(request.method, "PUT" | "POST").then_some(0),
            Body::Bytes(bytes) => Some(bytes.len() as u64),
            Body::Stream(length, _) => Some(*length),
        };
        headers.extend(length.map(|length| ("content-length".to_owned(), length.to_string())));
        headers.extend(request.headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        if let Some(credentials) = &self.config.credentials {
            let date = sigv4::date(SystemTime::now().into());
            headers.push(("x-amz-content-sha256".to_owned(), UNSIGNED_PAYLOAD.to_owned()));
            headers.push(("x-amz-date".to_owned(), date.clone()));
            let authorization =
                sigv4::authorization(credentials, &date, request.method, &path, &query, &headers, UNSIGNED_PAYLOAD);
            headers.push(("authorization".to_owned(), authorization));
        }
        headers.push(("user-agent".to_owned(), concat!("ernic-client/", env!("CARGO_PKG_VERSION")).to_owned()));
        if !self.config.keep_alive {
            headers.push(("connection".to_owned(), "close".to_owned()));
        }
        let target = if query.is_empty() { path } else { format!("{path}?{query}") };
        let mut head = format!("{} {target} HTTP/1.1\r\n", request.method);
        for (name, value) in headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str("\r\n");
        head.into_bytes()
    }

    /// CreateBucket; a bucket that is there already is fine.
    pub fn create_bucket(&mut self, bucket: &str) -> Result<(), ClientError> {
        if self.call(&Request::new("HEAD", bucket, ""), None)?.is_success() {
            return Ok(());
        }
        self.call(&Request::new("PUT", bucket, ""), None)?.check().map(|_| ())
    }

    /// ListObjectsV2, all pages.
    pub fn list(&mut self, bucket: &str, prefix: &str) -> Result<Vec<Listed>, ClientError> {
        let mut listed = Vec::new();
        let mut token: Option<String> = None;
        for _ in 0..MAX_PAGES {
            let mut request = Request::new("GET", bucket, "").query("list-type", "2").query("prefix", prefix);
            if let Some(token) = token.take() {
                request = request.query("continuation-token", token);
            }
            let page = self.call(&request, None)?.check()?.document("ListBucketResult")?;
            for object in page.all("Contents") {
                let size = object.text_of("Size").and_then(|size| size.parse().ok());
                match (object.text_of("Key"), size) {
                    (Some(key), Some(size)) => listed.push(Listed { key: key.to_owned(), size }),
                    _ => return Err(ClientError::BadAnswer("a listed object without Key or Size".into())),
                }
            }
            if page.text_of("IsTruncated") != Some("true") {
                return Ok(listed);
            }
            token = page.text_of("NextContinuationToken").map(str::to_owned);
            if token.is_none() {
                return Err(ClientError::BadAnswer("a truncated listing without NextContinuationToken".into()));
            }
        }
        Err(ClientError::BadAnswer("a listing without an end".into()))
    }

    /// ListMultipartUploads: key and id of the running uploads, as far as the first page has them.
    pub fn uploads(&mut self, bucket: &str) -> Result<Vec<(String, String)>, ClientError> {
        let request = Request::new("GET", bucket, "").query("uploads", "");
        let page = self.call(&request, None)?.check()?.document("ListMultipartUploadsResult")?;
        let text = |upload: &Node, name| upload.text_of(name).unwrap_or_default().to_owned();
        Ok(page.all("Upload").map(|upload| (text(upload, "Key"), text(upload, "UploadId"))).collect())
    }

    /// DeleteObject.
    pub fn delete(&mut self, bucket: &str, key: &str) -> Result<(), ClientError> {
        self.call(&Request::new("DELETE", bucket, key), None)?.check().map(|_| ())
    }

    /// CreateMultipartUpload of an object with a CRC64NVME. Returns the upload's id.
    pub fn create_upload(&mut self, bucket: &str, key: &str) -> Result<String, ClientError> {
        let request = Request::new("POST", bucket, key)
            .header("x-amz-checksum-algorithm", "CRC64NVME")
            .header("x-amz-checksum-type", "FULL_OBJECT");
        self.upload_of(request)
    }

    /// CreateMultipartUpload without checksums. Returns the upload's id.
    pub fn create_plain_upload(&mut self, bucket: &str, key: &str) -> Result<String, ClientError> {
        self.upload_of(Request::new("POST", bucket, key))
    }

    fn upload_of(&mut self, request: Request<'_>) -> Result<String, ClientError> {
        let answer = self.call(&request.query("uploads", ""), None)?.check()?;
        let document = answer.document("InitiateMultipartUploadResult")?;
        let id = document.text_of("UploadId").filter(|id| !id.is_empty());
        id.map(str::to_owned).ok_or_else(|| ClientError::BadAnswer("an upload without UploadId".into()))
    }

    /// CompleteMultipartUpload with the CRC64NVME of the whole object, in base64. Returns the object's ETag and the CRC64NVME
    /// that the server says.
    pub fn complete_upload(
        &mut self,
        bucket: &str,
        key: &str,
        id: &str,
        parts: &[Part],
        crc64nvme: &str,
    ) -> Result<(String, Option<String>), ClientError> {
        let parts = parts.iter().map(|Part { number, etag, crc64nvme }| (*number, &**etag, Some(&**crc64nvme)));
        let request = Request::new("POST", bucket, key)
            .header("x-amz-checksum-type", "FULL_OBJECT")
            .header("x-amz-checksum-crc64nvme", crc64nvme);
        let done = self.complete(request, id, parts)?;
        Ok((done.etag, done.crc64nvme))
    }

    /// CompleteMultipartUpload of an upload without checksums: numbers and ETags of its parts, in order. Returns the object's ETag.
    pub fn complete_plain_upload<'p>(
        &mut self,
        bucket: &str,
        key: &str,
        id: &str,
        parts: impl Iterator<Item = (u32, &'p str)>,
    ) -> Result<String, ClientError> {
        let parts = parts.map(|(number, etag)| (number, etag, None));
        Ok(self.complete(Request::new("POST", bucket, key), id, parts)?.etag)
    }

    fn complete<'p>(
        &mut self,
        request: Request<'_>,
        id: &str,
        parts: impl Iterator<Item = (u32, &'p str, Option<&'p str>)>,
    ) -> Result<Completed, ClientError> {
        let mut document = "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">".to_owned();
        for (number, etag, crc64nvme) in parts {
            let etag = xml::escape(etag);
            document.push_str(&format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag>"));
            if let Some(crc64nvme) = crc64nvme {
                document.push_str(&format!("<ChecksumCRC64NVME>{crc64nvme}</ChecksumCRC64NVME>"));
            }
            document.push_str("</Part>");
        }
        document.push_str("</CompleteMultipartUpload>");
        let request = request.query("uploadId", id).header("content-type", "application/xml");
        // S3 may answer 200 before it knows, and say in the document that it failed.
        let answer = self.call(&request.body(Body::Bytes(document.as_bytes())), None)?.check()?;
        let done = answer.document("CompleteMultipartUploadResult");
        let done = match done {
            Err(_) if answer.document("Error").is_ok() => return Err(answer.refusal()?.into()),
            done => done?,
        };
        let etag = done.text_of("ETag").ok_or(Violation::NoEtag)?.to_owned();
        Ok(Completed { etag, crc64nvme: done.text_of("ChecksumCRC64NVME").map(str::to_owned) })
    }

    /// AbortMultipartUpload.
    pub fn abort_upload(&mut self, bucket: &str, key: &str, id: &str) -> Result<(), ClientError> {
        self.call(&Request::new("DELETE", bucket, key).query("uploadId", id), None)?.check().map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_plain_http() {
        let read = |text: &str| text.parse::<Endpoint>().map(|endpoint| (endpoint.to_string(), endpoint.host_header()));
        let good = |a: &str, b: &str| Ok((a.to_owned(), b.to_owned()));
        assert_eq!(read("http://192.168.200.1:9000"), good("http://192.168.200.1:9000", "192.168.200.1:9000"));
        assert_eq!(read("http://host/"), good("http://host:80", "host"));
        assert_eq!(read("http://[fd00::1]:9000"), good("http://[fd00::1]:9000", "[fd00::1]:9000"));
        for bad in [
            "",
            "host",
            "host:9000",
            "https://host",
            "http://",
            "http://host/path",
            "http://host:0",
            "http://host:",
            "http://u@host",
            "http://host?x",
            "http://host:99999",
        ] {
            assert_eq!(read(bad), Err(BadEndpoint(bad.into())), "{bad}");
        }
        let local = Endpoint::from(SocketAddr::from(([127, 0, 0, 1], 9000)));
        assert_eq!(local.to_string(), "http://127.0.0.1:9000");
        assert_eq!(local.local_address(), Some(IpAddr::from([127, 0, 0, 1])));
    }

    fn client(credentials: Option<Credentials>, keep_alive: bool) -> Client {
        let mut config = Config::new("http://127.0.0.1:9000".parse().unwrap());
        (config.credentials, config.keep_alive) = (credentials, keep_alive);
        Client::new(config).unwrap()
    }

    #[test]
    fn a_request_has_the_headers_it_needs_and_no_others() {
        let request = Request::new("PUT", "b", "a key").query("x", "1 2").header("x-amz-rdma-token", "t");
        let head = String::from_utf8(client(None, true).head(&request)).unwrap();
        assert_eq!(
            head,
            format!(
                "PUT /b/a%20key?x=1%202 HTTP/1.1\r\nhost: 127.0.0.1:9000\r\ncontent-length: 0\r\nx-amz-rdma-token: t\r\n\
                 user-agent: ernic-client/{}\r\n\r\n",
                env!("CARGO_PKG_VERSION")
            )
        );
        let head = String::from_utf8(client(None, false).head(&Request::new("GET", "b", ""))).unwrap();
        assert!(head.starts_with("GET /b HTTP/1.1\r\n") && head.contains("\r\nconnection: close\r\n"), "{head}");
        assert!(!head.contains("content-length"));
    }

    #[test]
    fn a_signed_request_signs_the_token() {
        let credentials = Credentials { access: "a".into(), secret: "s".into(), region: "r".into() };
        let request = Request::new("PUT", "b", "k").header("x-amz-rdma-token", "t");
        let head = String::from_utf8(client(Some(credentials), false).head(&request)).unwrap();
        let signed = "SignedHeaders=content-length;host;x-amz-content-sha256;x-amz-date;x-amz-rdma-token,";
        assert!(head.contains(signed), "{head}");
        assert!(head.contains("\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\n"));
    }

    fn answer(status: u16, headers: &[(&str, &str)], document: &str) -> Answer {
        let headers = headers.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        Answer { status, headers, document: document.into(), length: document.len() as u64 }
    }

    #[test]
    fn refusals_are_read_with_their_reply() {
        let document = "<Error><Code>NoSuchKey</Code><Message>Not &lt;there&gt;.</Message></Error>";
        let refusal = answer(404, &[("x-amz-rdma-reply", "404")], document).refusal().unwrap();
        assert_eq!(refusal.to_string(), "refused with status 404 NoSuchKey: Not <there>. (x-amz-rdma-reply 404)");
        let refusal = answer(502, &[], "<html>").refusal().unwrap();
        assert_eq!(refusal.to_string(), "refused with status 502");
        assert!(matches!(answer(403, &[], "").check(), Err(ClientError::Refused(Refusal { status: 403, .. }))));
        assert!(answer(200, &[], "").check().is_ok());
    }

    #[test]
    fn a_header_has_one_value() {
        let answer = answer(200, &[("A", "1"), ("a", "1"), ("B", "1"), ("b", "2")], "");
        assert_eq!(answer.header("a"), Ok(Some("1")));
        assert_eq!(answer.header("b"), Err(Violation::Twice("b".into())));
        assert_eq!(answer.header("c"), Ok(None));
    }

    /// A service of S3 that does nothing but check signatures, and is not ours: `s3s` with credentials.
    mod verifier {
        use futures_util::FutureExt;
        use s3s::{
            S3, S3Request, S3Response, S3Result,
            auth::SimpleAuth,
            dto::{
                GetObjectInput, GetObjectOutput, ListObjectsV2Input, ListObjectsV2Output, PutObjectInput,
                PutObjectOutput,
            },
            service::{S3Service, S3ServiceBuilder},
        };

        struct Nothing;

        #[async_trait::async_trait]
        impl S3 for Nothing {
            async fn get_object(&self, _: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
                Ok(S3Response::new(GetObjectOutput::default()))
            }

            async fn put_object(&self, _: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
                Ok(S3Response::new(PutObjectOutput::default()))
            }

            async fn list_objects_v2(
                &self,
                _: S3Request<ListObjectsV2Input>,
            ) -> S3Result<S3Response<ListObjectsV2Output>> {
                Ok(S3Response::new(ListObjectsV2Output::default()))
            }
        }

        pub(super) fn new() -> S3Service {
            let mut builder = S3ServiceBuilder::new(Nothing);
            builder.set_auth(SimpleAuth::from_single("access", "secret/+key"));
            builder.build()
        }

        /// The status of the answer to a request of which this is the head.
        pub(super) fn status(service: &S3Service, head: &[u8]) -> u16 {
            let mut fields = [httparse::EMPTY_HEADER; 32];
            let mut parsed = httparse::Request::new(&mut fields);
            assert!(parsed.parse(head).unwrap().is_complete());
            let mut request = http::Request::builder().method(parsed.method.unwrap()).uri(parsed.path.unwrap());
            for field in parsed.headers.iter() {
                request = request.header(field.name, field.value);
            }
            let answer = service.call(request.body(s3s::Body::empty()).unwrap()).now_or_never().unwrap();
            answer.unwrap().status().as_u16()
        }
    }

    fn signing() -> Client {
        let (access, secret, region) = ("access".into(), "secret/+key".into(), "eu-north-7".into());
        client(Some(Credentials { access, secret, region }), true)
    }

    #[test]
    fn signatures_are_verified_by_somebody_else() {
        let service = verifier::new();
        let put = Request::new("PUT", "bucket", "a+ b/é!'()*~.txt")
            .header("x-amz-rdma-token", "00:11")
            .header("x-amz-meta-crc32", "0  1");
        let head = signing().head(&put);
        assert_eq!(verifier::status(&service, &head), 200);
        // Every byte of what is signed counts, the token above all.
        let text = String::from_utf8(head).unwrap();
        for (from, to) in [("token: 00:11", "token: 00:12"), ("a%2B%20b", "a%2B%20c"), ("crc32: 0  1", "crc32: 0  2")] {
            assert!(text.contains(from), "{text}");
            assert_eq!(verifier::status(&service, text.replacen(from, to, 1).as_bytes()), 403, "{from}");
        }
        let get = Request::new("GET", "bucket", "key").header("range", "bytes=1024-1535");
        assert_eq!(verifier::status(&service, &signing().head(&get)), 200);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(1000))]

        /// Case 19: any key, and any prefix in a query.
        #[test]
        fn case_19_any_key_and_any_query_are_signed_as_they_are_sent(key in "[ -~éß/]{1,40}", prefix in "\\PC{0,40}") {
            let service = verifier::new();
            let put = signing().head(&Request::new("PUT", "bucket", &key));
            proptest::prop_assert_eq!(verifier::status(&service, &put), 200, "{}", String::from_utf8_lossy(&put));
            let list = Request::new("GET", "bucket", "").query("list-type", "2").query("prefix", prefix);
            let list = signing().head(&list);
            proptest::prop_assert_eq!(verifier::status(&service, &list), 200, "{}", String::from_utf8_lossy(&list));
        }
    }
}
