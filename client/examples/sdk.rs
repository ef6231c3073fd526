//! An object to a server and back: `cargo run -p ernic-client --example sdk -- http://HOST:PORT BUCKET`.

use std::{error::Error, sync::Arc};

use ernic_client::{Carrier, Session, memory::Registrar, s3::Endpoint, verbs};

/// Stores an object, and fetches all of it and a part of it. Returns what carried the two downloads.
pub fn move_objects(
    endpoint: Endpoint,
    bucket: &str,
    device: Option<Arc<dyn Registrar>>,
) -> Result<[Carrier; 2], Box<dyn Error>> {
    // Buffers of 1 MiB. Credentials would be the second argument.
    let mut session = Session::new(endpoint, None, device, 1 << 20)?;
    // Registered here, and used for everything that follows.
    let mut buffer = session.buffer()?;
    buffer.write(0, b"hello, memory");

    let sent = session.upload(bucket, "greeting", &buffer, 13)?;
    println!("{} bytes by {}, etag {}", sent.bytes, sent.carrier, sent.etag);
    if let Some((signal, refusal)) = &sent.fell_back {
        println!("not by RDMA ({signal}): {refusal}");
    }

    let whole = session.download(bucket, "greeting", &mut buffer)?;
    let part = session.download_range(bucket, "greeting", 7, 6, &mut buffer)?;
    let mut text = [0; 6];
    buffer.read(0, &mut text);
    println!("{} bytes by {}: {}", part.bytes, part.carrier, String::from_utf8_lossy(&text));
    session.close();
    Ok([whole.carrier, part.carrier])
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(endpoint), Some(bucket)) = (arguments.next(), arguments.next()) else {
        return Err("usage: sdk http://HOST:PORT BUCKET".into());
    };
    let endpoint: Endpoint = endpoint.parse()?;
    let options = verbs::Options { local: endpoint.local_address(), ..verbs::Options::default() };
    // Without a device, everything goes by HTTP.
    let device = match verbs::Device::open(&options) {
        Ok(device) => Some(Arc::new(device) as Arc<dyn Registrar>),
        Err(reason) => {
            println!("no RDMA: {reason}");
            None
        }
    };
    move_objects(endpoint, &bucket, device).map(|_| ())
}
