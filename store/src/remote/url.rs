//! The URL that names a remote, and the credentials for it.

use std::{collections::BTreeMap, env, fmt, str::FromStr};

use reqwest::Url;

/// Why there is no remote store. The text is complete: it names the value and says what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RemoteError {
    /// No URL, or one of an unknown kind.
    #[error("bad remote '{0}': {1}")]
    Url(String, String),
    /// A user or a password in the URL, which is not shown.
    #[error(
        "bad remote '{0}…': it has a user or a password, which everybody on this machine could read in the list of \
         processes; put them into the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for S3)"
    )]
    UserInfo(String),
    /// One of the two variables without the other.
    #[error("{0} is set and {1} is not: set both, or neither for a remote that asks for no credentials")]
    HalfCredentials(&'static str, &'static str),
    /// The service cannot be set up.
    #[error("remote {0}: {1}")]
    Service(String, String),
    /// No runtime.
    #[error("remote store: cannot start its threads: {0}")]
    Runtime(String),
}

/// What an access to an S3 server is signed with.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The access key id, which is no secret.
    pub key: String,
    /// The secret key.
    pub secret: String,
    /// Of temporary credentials.
    pub token: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("key", &self.key).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Those of `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY` and `AWS_SESSION_TOKEN`; `None` if there are none.
    ///
    /// # Errors
    ///
    /// [`RemoteError::HalfCredentials`].
    pub fn from_env() -> Result<Option<Self>, RemoteError> {
        const KEY: &str = "AWS_ACCESS_KEY_ID";
        const SECRET: &str = "AWS_SECRET_ACCESS_KEY";
        let var = |name| env::var(name).ok().filter(|value| !value.is_empty());
        match (var(KEY), var(SECRET)) {
            (None, None) => Ok(None),
            (Some(key), Some(secret)) => Ok(Some(Self { key, secret, token: var("AWS_SESSION_TOKEN") })),
            (Some(_), None) => Err(RemoteError::HalfCredentials(KEY, SECRET)),
            (None, Some(_)) => Err(RemoteError::HalfCredentials(SECRET, KEY)),
        }
    }
}

/// Where a remote is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteUrl {
    /// An S3 server.
    S3(S3Place),
    /// What OpenDAL reaches.
    Other(ServicePlace),
}

/// An S3 server, or one bucket of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct S3Place {
    /// `http://host:port` or `https://host`, and a path if the service is behind one.
    pub(super) endpoint: Url,
    /// The only bucket; `None` for all.
    pub(super) bucket: Option<String>,
    pub(super) region: String,
    /// `bucket.host` instead of `host/bucket`.
    pub(super) virtual_host: bool,
}

/// A service of OpenDAL, whose folders are the buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePlace {
    /// OpenDAL's name of the service.
    pub(super) scheme: String,
    /// What to set it up with.
    pub(super) options: BTreeMap<String, String>,
    /// How it is named in messages.
    pub(super) name: String,
}

impl fmt::Display for RemoteUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::S3(S3Place { endpoint, bucket, .. }) => {
                write!(f, "{}", endpoint.as_str().trim_end_matches('/'))?;
                bucket.as_ref().map_or(Ok(()), |bucket| write!(f, " (bucket {bucket})"))
            }
            Self::Other(place) => f.write_str(&place.name),
        }
    }
}

impl FromStr for RemoteUrl {
    type Err = RemoteError;

    /// Reads `s3+http://HOST[:PORT][/BUCKET][?region=R&style=path|virtual]`, `s3+https://…` alike, `s3://[BUCKET]` for
    /// AWS, and `webdav+http(s)://HOST/ROOT`, `azblob://…`, `gcs://…`, `hdfs-native://…`, `fs:///PATH`.
    fn from_str(text: &str) -> Result<Self, RemoteError> {
        let bad = |why: &str| RemoteError::Url(shown(text), why.to_owned());
        let (scheme, rest) = text.split_once("://").ok_or_else(|| bad(KINDS))?;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.contains('@') {
            return Err(RemoteError::UserInfo(format!("{scheme}://")));
        }
        if rest.contains('#') {
            return Err(bad("it must not have a fragment (#…)"));
        }
        match scheme {
            "s3+http" | "s3+https" => s3(text, &text["s3+".len()..]).map(Self::S3),
            "s3" => aws(text, rest).map(Self::S3),
            _ => other(text, scheme, rest).map(Self::Other),
        }
    }
}

const KINDS: &str = "use s3+http://HOST:PORT, s3+https://HOST or s3://BUCKET, and see the guide for other services";

/// A URL without what may be a secret: its user part and its query.
fn shown(text: &str) -> String {
    let text = text.split('?').next().unwrap_or_default();
    match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}://…{}", &text[..scheme], &text[at..]),
        _ => text.to_owned(),
    }
}

/// The options in a query.
fn options(text: &str, query: Option<&str>) -> Result<BTreeMap<String, String>, RemoteError> {
    let mut options = BTreeMap::new();
    for item in query.unwrap_or_default().split('&').filter(|item| !item.is_empty()) {
        let bad = |why: String| RemoteError::Url(shown(text), why);
        let (key, value) = item.split_once('=').ok_or_else(|| bad(format!("option '{item}' has no value")))?;
        let value = percent_encoding::percent_decode_str(value).decode_utf8();
        let value = value.map_err(|_| bad(format!("option '{key}' is no UTF-8")))?.into_owned();
        if options.insert(key.to_owned(), value).is_some() {
            return Err(bad(format!("option '{key}' is given twice")));
        }
    }
    Ok(options)
}

fn s3(text: &str, http: &str) -> Result<S3Place, RemoteError> {
    let bad = |why: &str| RemoteError::Url(shown(text), why.to_owned());
    let mut endpoint: Url = http.parse().map_err(|error| bad(&format!("{error}")))?;
    let mut options = options(text, endpoint.query())?;
    endpoint.set_query(None);
    // As it was written: a URL's parser takes `.` and `..` away, and what is left would be another place.
    let written = http.split_once("://").map_or("", |(_, rest)| rest).split('?').next().unwrap_or_default();
    let path = written.split_once('/').map_or("", |(_, path)| path).trim_matches('/').to_owned();
    if path.contains('/') {
        return Err(bad("its path is one bucket at most"));
    }
    endpoint.set_path("");
    finish(text, endpoint, path, &mut options, false)
}

fn aws(text: &str, rest: &str) -> Result<S3Place, RemoteError> {
    let bad = |why: &str| RemoteError::Url(shown(text), why.to_owned());
    let (bucket, query) = rest.split_once('?').map_or((rest, None), |(bucket, query)| (bucket, Some(query)));
    let bucket = bucket.trim_end_matches('/');
    if bucket.contains(['/', ':']) {
        return Err(bad("use s3://BUCKET for AWS, and s3+http:// or s3+https:// for another server"));
    }
    let mut options = options(text, query)?;
    let region = options.get("region").map_or(DEFAULT_REGION, String::as_str);
    let endpoint = format!("https://s3.{region}.amazonaws.com").parse();
    let endpoint = endpoint.map_err(|_| bad("its region is no name"))?;
    // A certificate's `*.` stands for one label.
    let virtual_host = !bucket.contains('.');
    finish(text, endpoint, bucket.to_owned(), &mut options, virtual_host)
}

/// Region that requests are signed for where none is given. Servers other than AWS rarely look at it.
const DEFAULT_REGION: &str = "us-east-1";

fn finish(
    text: &str,
    endpoint: Url,
    bucket: String,
    options: &mut BTreeMap<String, String>,
    virtual_host: bool,
) -> Result<S3Place, RemoteError> {
    let bad = |why: String| RemoteError::Url(shown(text), why);
    let region = options.remove("region").unwrap_or_else(|| DEFAULT_REGION.to_owned());
    if region.is_empty() || !region.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        return Err(bad(format!("bad region '{region}'")));
    }
    let virtual_host = match options.remove("style").as_deref() {
        None => virtual_host,
        Some("path") => false,
        Some("virtual") if endpoint.domain().is_some() => true,
        Some("virtual") => return Err(bad("style=virtual needs a host with a name".to_owned())),
        Some(style) => return Err(bad(format!("bad style '{style}': use path or virtual"))),
    };
    if let Some(key) = options.keys().next() {
        return Err(bad(format!("unknown option '{key}': known are region, style")));
    }
    let name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    if !bucket.bytes().all(name) || bucket.starts_with('.') {
        return Err(bad(format!("'{bucket}' is no bucket's name")));
    }
    Ok(S3Place { endpoint, bucket: Some(bucket).filter(|bucket| !bucket.is_empty()), region, virtual_host })
}

/// Options of OpenDAL's services that are secrets: they come from the environment instead.
const SECRETS: [&str; 8] = ["key", "secret", "token", "password", "credential", "username", "sas", "signature"];

fn other(text: &str, scheme: &str, rest: &str) -> Result<ServicePlace, RemoteError> {
    let bad = |why: String| RemoteError::Url(shown(text), why);
    let (place, query) = rest.split_once('?').map_or((rest, None), |(place, query)| (place, Some(query)));
    let (authority, root) = place.split_once('/').unwrap_or((place, ""));
    let mut options = options(text, query)?;
    if let Some(key) = options.keys().find(|key| SECRETS.iter().any(|secret| key.contains(secret))) {
        return Err(bad(format!("option '{key}' is a secret, which a URL is no place for: use the environment")));
    }
    let mut set = |key: &str, value: String| options.insert(key.to_owned(), value);
    let env = |name| env::var(name).ok().filter(|value: &String| !value.is_empty());
    set("root", format!("/{root}"));
    let scheme = match scheme {
        "webdav+http" | "webdav+https" | "webdav" => {
            let http = if scheme == "webdav+http" { "http" } else { "https" };
            set("endpoint", format!("{http}://{authority}"));
            if let (Some(user), Some(password)) = (env("WEBDAV_USERNAME"), env("WEBDAV_PASSWORD")) {
                set("username", user);
                set("password", password);
            }
            "webdav"
        }
        "azblob" => {
            set("container", authority.to_owned());
            let account = env("AZURE_STORAGE_ACCOUNT_NAME");
            if let Some(key) = env("AZURE_STORAGE_ACCOUNT_KEY") {
                set("account_key", key);
            }
            if let Some(account) = account {
                set("account_name", account.clone());
                let endpoint = || format!("https://{account}.blob.core.windows.net");
                options.entry("endpoint".to_owned()).or_insert_with(endpoint);
            }
            "azblob"
        }
        "gcs" => {
            set("bucket", authority.to_owned());
            "gcs"
        }
        "hdfs-native" => {
            set("name_node", format!("hdfs://{authority}"));
            "hdfs-native"
        }
        "fs" if authority.is_empty() && !root.is_empty() => "fs",
        "fs" => return Err(bad("use fs:///PATH".to_owned())),
        _ => return Err(bad(format!("unknown scheme '{scheme}': {KINDS}"))),
    };
    Ok(ServicePlace { scheme: scheme.to_owned(), options, name: shown(text) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn s3(text: &str) -> (String, Option<String>, String, bool) {
        match text.parse().unwrap() {
            RemoteUrl::S3(place) => (place.endpoint.to_string(), place.bucket, place.region, place.virtual_host),
            other @ RemoteUrl::Other(_) => panic!("{other:?}"),
        }
    }

    #[test]
    fn s3_servers() {
        let of = |endpoint: &str, bucket: Option<&str>, region: &str, virtual_host| {
            (endpoint.to_owned(), bucket.map(str::to_owned), region.to_owned(), virtual_host)
        };
        for (text, expected) in [
            ("s3+http://127.0.0.1:9001", of("http://127.0.0.1:9001/", None, "us-east-1", false)),
            ("s3+http://127.0.0.1:9001/?region=eu-west-1", of("http://127.0.0.1:9001/", None, "eu-west-1", false)),
            ("s3+https://[::1]:9/data/", of("https://[::1]:9/", Some("data"), "us-east-1", false)),
            ("s3+https://h.example/b?style=virtual", of("https://h.example/", Some("b"), "us-east-1", true)),
            ("s3://", of("https://s3.us-east-1.amazonaws.com/", None, "us-east-1", true)),
            ("s3://my.b?region=eu-x", of("https://s3.eu-x.amazonaws.com/", Some("my.b"), "eu-x", false)),
            ("s3://b?style=path", of("https://s3.us-east-1.amazonaws.com/", Some("b"), "us-east-1", false)),
        ] {
            assert_eq!(s3(text), expected, "{text}");
        }
    }

    #[test]
    fn refusals_name_value_and_remedy() {
        for (text, expected) in [
            ("", format!("bad remote '': {KINDS}")),
            ("host:9000", format!("bad remote 'host:9000': {KINDS}")),
            ("http://h", format!("bad remote 'http://h': unknown scheme 'http': {KINDS}")),
            ("s3+http://h/a/b", "bad remote 's3+http://h/a/b': its path is one bucket at most".into()),
            ("s3+http://h?x=1", "bad remote 's3+http://h': unknown option 'x': known are region, style".into()),
            ("s3+http://h?region", "bad remote 's3+http://h': option 'region' has no value".into()),
            ("s3+http://h?region=a%20b", "bad remote 's3+http://h': bad region 'a b'".into()),
            ("s3+http://h?region=a&region=b", "bad remote 's3+http://h': option 'region' is given twice".into()),
            ("s3+http://h?style=new", "bad remote 's3+http://h': bad style 'new': use path or virtual".into()),
            (
                "s3+http://127.0.0.1?style=virtual",
                "bad remote 's3+http://127.0.0.1': style=virtual needs a host with a name".into(),
            ),
            ("s3+http://h/b#c", "bad remote 's3+http://h/b#c': it must not have a fragment (#…)".into()),
            ("s3+http://h/%2e%2e", "bad remote 's3+http://h/%2e%2e': '%2e%2e' is no bucket's name".into()),
            ("s3+http://h/..", "bad remote 's3+http://h/..': '..' is no bucket's name".into()),
            (
                "s3://h:9000",
                "bad remote 's3://h:9000': use s3://BUCKET for AWS, and s3+http:// or s3+https:// for another server"
                    .into(),
            ),
            ("fs://host/a", "bad remote 'fs://host/a': use fs:///PATH".into()),
            (
                "azblob://c/?account_key=hush",
                "bad remote 'azblob://c/': option 'account_key' is a secret, which a URL is no place for: use the \
                 environment"
                    .into(),
            ),
        ] {
            let error = text.parse::<RemoteUrl>().unwrap_err().to_string();
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for text in ["s3+http://key:hush@h/b", "s3://key:hush@b", "webdav://u:hush@h/", "s3+http://key:hush@"] {
            let error = text.parse::<RemoteUrl>().unwrap_err().to_string();
            assert!(!error.contains("hush") && error.contains("AWS_SECRET_ACCESS_KEY"), "{error}");
        }
        let credentials = Credentials { key: "id".into(), secret: "hush".into(), token: Some("hush".into()) };
        assert_eq!(format!("{credentials:?}"), "Credentials { key: \"id\", .. }");
    }

    #[test]
    fn other_services() {
        let RemoteUrl::Other(place) = "webdav+http://h:8080/root/a?x=y%2Fz".parse().unwrap() else { panic!() };
        assert_eq!(place.scheme, "webdav");
        let options: Vec<_> = place.options.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(options, [("endpoint", "http://h:8080"), ("root", "/root/a"), ("x", "y/z")]);
        assert_eq!(place.name, "webdav+http://h:8080/root/a");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_text_is_answered(text in "(s3|s3\\+http|webdav|fs|x)?(://)?[a-z0-9@:/?=&%#.\\[\\]-]{0,24}") {
            match text.parse::<RemoteUrl>() {
                Ok(url) => prop_assert!(!url.to_string().is_empty()),
                Err(error) => prop_assert!(error.to_string().starts_with("bad remote '"), "{error}"),
            }
        }
    }
}
