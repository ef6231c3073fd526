//! `ernic-bench`: see [`options::Options`].

mod options;

use std::{
    env,
    error::Error,
    fs::File,
    io::{self, Write},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use ernic_client::{
    Protocol, Session,
    bench::{self, Plan, Row, Worker},
    counters::Counters,
    functional,
    memory::Registrar,
    s3::Client,
    size, soak,
    transfer::{Direction, Family},
    verbs::Device,
};
use options::{Options, Switch};

/// What ends the program with status 1.
type Failure = Box<dyn Error>;

fn main() -> ExitCode {
    let options = Options::read(env::args_os()).unwrap_or_else(|error| error.exit());
    let result = match options.soak {
        Some(rounds) => soak(&options, rounds),
        None if options.functional => check(&options),
        None => measure(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = io::stdout().flush();
            eprintln!("Error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints a line. Errors: nobody reads any more.
fn say(line: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

/// What is done, in the words of the first lines.
fn mode(options: &Options) -> &'static str {
    match options.protocol.into() {
        _ if options.std_s3 => "standard-s3",
        Protocol::RcV2 => "host-memory-hipobj-rc-v2",
        Protocol::Auto => "host-memory-auto",
        Protocol::Token => "host-memory-cuobject-token",
    }
}

/// Opens the device and says which.
fn open(options: &Options) -> Result<Device, Failure> {
    let device = Device::open(&options.device(options.endpoint.local_address()))?;
    let (port, family) = (device.port(), Family::from(options.token));
    say(&format!("device={} port={} qpn={:#x} {} token={family}", device.name(), port.number, port.qpn, device.gid()))?;
    Ok(device)
}

fn check(options: &Options) -> Result<(), Failure> {
    say(&format!("endpoint={} bucket={}", options.endpoint, options.bucket))?;
    say(&format!("mode={}", mode(options)))?;
    let device = open(options)?;
    let mut client = Client::new(options.config())?;
    let (family, protocol) = (options.token.into(), options.protocol.into());
    let plan = functional::Plan { family, protocol, ..functional::Plan::new(&options.bucket) };
    let mut broken = Ok(());
    let summary = functional::run(&mut client, &device, &plan, &mut |line| {
        if broken.is_ok() {
            broken = say(line);
        }
    })?;
    broken?;
    match summary.failed {
        0 => Ok(say("all checks passed")?),
        failed => Err(format!("{failed} of {} checks failed", failed + summary.passed).into()),
    }
}

/// The device, unless there is to be none. Says what is done.
fn device(options: &Options) -> Result<Option<Arc<dyn Registrar>>, Failure> {
    say(&format!("mode={}", mode(options)))?;
    Ok(if options.std_s3 { None } else { Some(Arc::new(open(options)?)) })
}

fn soak(options: &Options, rounds: u32) -> Result<(), Failure> {
    let (endpoint, bucket, key) = (&options.endpoint, &options.bucket, &options.key);
    say(&format!("endpoint={endpoint} bucket={bucket} key={key} size={} soak={rounds}", options.size))?;
    let device = device(options)?;
    let config = options.config();
    let mut client = Client::new(config.clone())?;
    client.create_bucket(bucket)?;
    let plan = soak::Plan {
        bucket: bucket.clone(),
        key: key.clone(),
        size: options.size,
        rounds,
        most: options.soak_seconds.map(Duration::from_secs),
    };
    let mut connect = || {
        let session = Session::with_config(config.clone(), device.clone(), options.size)?;
        Ok(session.with_tokens(options.token.into()).with_protocol(options.protocol.into()))
    };
    let mut broken = Ok(());
    let report = soak::run(&plan, &mut connect, &mut |round| {
        if broken.is_ok() {
            broken = say(&format!("round {round}"));
        }
    })?;
    broken?;
    say(&serde_json::to_string(&report)?)?;
    if report.http > 0 && !options.std_s3 && !options.allow_fallback {
        let all = report.rdma + report.http;
        return Err(
            format!("{} of {all} transfers fell back to HTTP; --allow-fallback accepts that", report.http).into()
        );
    }
    Ok(())
}

fn measure(options: &Options) -> Result<(), Failure> {
    let sizes = options.sizes();
    let config = options.config();
    let auth = if config.credentials.is_some() { "sigv4" } else { "none" };
    let keep_alive = if options.keep_alive == Switch::On { "on" } else { "off" };
    say(&format!(
        "endpoint={} bucket={} key={} n={} connections={} keep-alive={keep_alive} auth={auth}",
        options.endpoint, options.bucket, options.key, options.iterations, options.connections
    ))?;
    let device = device(options)?;

    // One buffer for each connection, large enough for the largest object, registered once.
    let most = sizes.iter().copied().max().unwrap_or_default();
    let mut workers = Vec::new();
    for _ in 0..options.connections {
        let session = Session::with_config(config.clone(), device.clone(), most)?;
        let session = session.with_tokens(options.token.into()).with_protocol(options.protocol.into());
        workers.push(Worker::new(session)?);
    }

    let mut client = Client::new(config)?;
    client.create_bucket(&options.bucket)?;
    let before = Counters::read(&mut client)?;
    let (mut rows, mut samples) = (Vec::new(), Vec::new());
    for size in sizes {
        let plan = Plan {
            bucket: options.bucket.clone(),
            key: options.key.clone(),
            size,
            iterations: options.iterations,
            only: options.only(),
        };
        say(&format!("size={size} ({})", size::text(size)))?;
        let mut broken = Ok(());
        let some = bench::run(&plan, &mut workers, &mut |sample| {
            if broken.is_ok() {
                broken = say(&sample.to_string());
            }
        })?;
        broken?;
        let both = [Direction::Put, Direction::Get];
        rows.extend(both.into_iter().filter_map(|direction| Row::new(size, direction, &some)));
        samples.extend(some);
    }
    say("")?;
    say(bench::table(&rows).trim_end())?;
    if let Some(path) = &options.csv {
        let mut file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
        bench::csv(&rows, &mut file)?;
    }
    if let Some(path) = &options.json {
        let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
        write_json(options, &rows, auth, file)?;
    }

    let rdma = samples.iter().filter(|sample| sample.rdma).count();
    let fell_back = samples.iter().filter(|sample| sample.fell_back.is_some()).count();
    say(&format!("transfers: {rdma} by RDMA, {} by HTTP, {fell_back} of these fell back", samples.len() - rdma))?;
    let mut problems = Vec::new();
    match (before, Counters::read(&mut client)?) {
        (Some(before), Some(after)) => {
            let differences = after.differences(&before, &bench::rise(&samples), !options.shared);
            if differences.is_empty() {
                say("the server's counters agree")?;
            }
            problems.extend(differences);
        }
        _ => say("the server has no counters to compare")?,
    }
    if fell_back > 0 && !options.allow_fallback {
        problems.push(format!(
            "{fell_back} of {} transfers fell back to HTTP; --allow-fallback accepts that",
            samples.len()
        ));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ").into()) }
}

/// Writes the rows with what they were measured under.
fn write_json(options: &Options, rows: &[Row], auth: &str, mut file: File) -> Result<(), Failure> {
    let value = serde_json::json!({
        "meta": {
            "version": env!("CARGO_PKG_VERSION"),
            "endpoint": options.endpoint.to_string(),
            "mode": mode(options),
            "token": if options.std_s3 { None } else { Some(Family::from(options.token).to_string()) },
            "connections": options.connections,
            "keep_alive": options.keep_alive == Switch::On,
            "auth": auth,
            "iterations": options.iterations,
        },
        "results": rows,
    });
    serde_json::to_writer_pretty(&mut file, &value)?;
    Ok(writeln!(file)?)
}
