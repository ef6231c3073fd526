//! What the server says once it is ready.

use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
};

use s3_proto::Etag;

use crate::{
    backend::{Backend, S3Options},
    credentials,
    options::{Options, ServeOptions},
    rdma::Hardware,
};

/// Store, endpoint and address, in the words that users of rocm-ernic know.
#[must_use]
pub fn s3_line(s3: &S3Options) -> String {
    let S3Options { bucket, size, .. } = s3;
    format!("s3 bucket '{bucket}' {size} bytes at {} mac {}", s3.url(), s3.mac())
}

/// Limits of the store, and what it is made of; `dhcp` is said in between.
fn limits(s3: &S3Options, dhcp: &str) -> String {
    let etag = match s3.etag {
        Etag::Md5 => "md5",
        Etag::Crc64Nvme => "crc64nvme",
    };
    format!("s3 objects {} maxpart {} bytes{dhcp} etag {etag} store {}", s3.objects, s3.maxpart, s3.store)
}

/// A QEMU command for a shell, complete but for the guest's own disk or kernel.
///
/// Guest memory must be a shared memfd, or QEMU has no descriptor of it to hand over. The NIC sits behind a root port,
/// which gives it a PCI Express link and makes it removable.
#[must_use]
pub fn qemu_command(socket: &Path) -> String {
    let path = serde_json::Value::from(socket.to_string_lossy());
    let device = format!(r#"{{"driver":"vfio-user-pci","bus":"ernic-port","socket":{{"type":"unix","path":{path}}}}}"#);
    format!(
        "qemu-system-x86_64 -accel kvm -accel tcg -cpu max -smp 4 -m 1G \
         -object memory-backend-memfd,id=mem0,share=on,size=1G -machine q35,memory-backend=mem0 \
         -device pcie-root-port,id=ernic-port,chassis=1 -device {}",
        shell_quoted(&device)
    )
}

/// One word for a POSIX shell.
fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Logs what is served and how to attach to it. Call it when the socket is there.
pub fn announce(options: &Options) {
    match &options.backend {
        Backend::S3(s3) => {
            tracing::info!("{}", s3_line(s3));
            let dhcp = if s3.dhcp { " dhcp on" } else { " dhcp off" };
            tracing::info!("{}", limits(s3, dhcp));
            if s3.web {
                tracing::info!("page for the guest's browsers: {}", s3.url());
            }
            if credentials::are_given(s3) {
                tracing::info!("authentication is on: requests must be signed");
            } else {
                tracing::info!("authentication is off: every program in the guest can read and write");
            }
            if let Some(rate) = options.rdma_rate {
                tracing::info!("rdma rate {rate} bytes/s for all transfers together");
            }
            if let Some(faults) = &options.fault {
                let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
                tracing::info!("rdma faults on demand: {}", faults.join(", "));
            }
        }
        Backend::None => tracing::info!(
            "no backend: nothing answers on the wire{}",
            match &options.tap {
                Some(tap) => format!(" but '{tap}'"),
                None => String::new(),
            }
        ),
    }
    let socket = options.absolute_socket();
    tracing::info!(
        "nic 1dd8:{:04x} mac {} mtu up to {} on {}",
        options.device_id.number(),
        options.nic_mac(),
        options.mtu,
        socket.display()
    );
    tracing::info!("attach QEMU 10.1 or later: {}", qemu_command(&socket));
}

/// Logs what `ernic serve` serves, and where, and how to try it; `keys` is the number of access keys. Call it when the address
/// is listened on.
pub fn announce_serve(options: &ServeOptions, address: SocketAddr, keys: usize, hardware: Option<&Hardware>) {
    let s3 = &options.backend;
    tracing::info!("s3 bucket '{}' {} bytes at http://{address}/", s3.bucket, s3.size);
    tracing::info!("{}", limits(s3, ""));
    match hardware {
        None => {
            tracing::info!("no RDMA: no hardware backend configured; requests with an RDMA token are declined (501)")
        }
        Some(hardware) => hardware.lines().iter().for_each(|line| tracing::info!("{line}")),
    }
    for command in commands(&s3.bucket, reachable(address), keys > 0) {
        tracing::info!("try: {command}");
    }
    if s3.web {
        tracing::info!("page for browsers: http://{}/", reachable(address));
    }
    match keys {
        0 if options.is_local() => {
            tracing::info!("authentication is off: everybody on this machine can read and write")
        }
        0 => tracing::warn!("authentication is off: everybody who can reach {address} can read and write"),
        1 => tracing::info!("authentication is on: requests must be signed with the access key"),
        keys => tracing::info!("authentication is on: requests must be signed with one of {keys} access keys"),
    }
}

/// An address that this machine can connect to, where a server listens on `address`.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    address
}

/// Commands for a shell that list the bucket. With authentication, they take the key from the environment.
fn commands(bucket: &str, address: SocketAddr, signed: bool) -> [String; 3] {
    let url = format!("http://{address}");
    let [access, secret] = credentials::VARIABLES.map(|name| format!("\"${name}\""));
    if signed {
        [
            format!(
                "AWS_ACCESS_KEY_ID={access} AWS_SECRET_ACCESS_KEY={secret} AWS_DEFAULT_REGION=us-east-1 aws --endpoint-url {url} \
                 s3 ls s3://{bucket}/"
            ),
            // curl before 8.0 does not make this header itself.
            format!(
                "curl --aws-sigv4 aws:amz:us-east-1:s3 -H \"x-amz-content-sha256: UNSIGNED-PAYLOAD\" --user {access}:{secret} \
                 {url}/{bucket}/"
            ),
            format!(
                "AWS_ACCESS_KEY_ID={access} AWS_SECRET_ACCESS_KEY={secret} rclone lsf \
                 \":s3,provider=Other,env_auth=true,endpoint='{url}':{bucket}\""
            ),
        ]
    } else {
        [
            format!("aws --no-sign-request --region us-east-1 --endpoint-url {url} s3 ls s3://{bucket}/"),
            format!("curl {url}/{bucket}/"),
            format!("rclone lsf \":s3,provider=Other,endpoint='{url}':{bucket}\""),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_exact() {
        assert_eq!(
            s3_line(&S3Options::default()),
            "s3 bucket 'ernic' 268435456 bytes at http://192.168.200.1:9000/ mac 02:53:c0:a8:c8:01"
        );
    }

    #[test]
    fn the_commands_name_bucket_and_address_and_no_secret() {
        for (address, url) in
            [("0.0.0.0:80", "http://127.0.0.1:80"), ("[::]:9", "http://[::1]:9"), ("10.0.0.1:1", "http://10.0.0.1:1")]
        {
            for signed in [false, true] {
                let commands = commands("bench", reachable(address.parse().unwrap()), signed);
                for (command, program) in commands.iter().zip(["aws ", "curl ", "rclone "]) {
                    assert!(
                        command.contains(program) && command.contains(url) && command.contains("bench"),
                        "{command}"
                    );
                    assert_eq!(command.contains("\"$ERNIC_SECRET_KEY\""), signed, "{command}");
                }
            }
        }
    }

    /// Through a real shell, and the JSON through a parser: an awkward path comes out as it went in.
    #[test]
    fn the_qemu_command_survives_a_shell() {
        for path in ["/run/user/0/ernic.sock", "/tmp/it's a \"path\", $HOME \\ `x`.sock"] {
            let command = qemu_command(Path::new(path));
            assert_eq!(command.lines().count(), 1);
            let output = std::process::Command::new("sh")
                .arg("-c")
                .arg(format!("printf '%s\\n' {command}"))
                .output()
                .expect("sh runs");
            let words: Vec<_> = std::str::from_utf8(&output.stdout).unwrap().lines().collect();
            assert_eq!(words[..2], ["qemu-system-x86_64", "-accel"]);
            assert!(words.contains(&"memory-backend-memfd,id=mem0,share=on,size=1G"));
            assert!(words.contains(&"q35,memory-backend=mem0"));
            let device: serde_json::Value = serde_json::from_str(words.last().unwrap()).unwrap();
            assert_eq!(device["driver"], "vfio-user-pci");
            assert_eq!(device["bus"], "ernic-port");
            assert_eq!(device["socket"]["type"], "unix");
            assert_eq!(device["socket"]["path"], path);
        }
    }
}
