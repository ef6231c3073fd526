//! `ernic`: an ionic NIC for QEMU with an S3 store on the other end of its wire.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use ernic::options::{Options, Stop};

/// A malformed command line, as is the custom.
const MALFORMED: u8 = 2;

fn main() -> ExitCode {
    let options = match Options::read(std::env::args_os()) {
        Ok(options) => options,
        // A reader that has gone away is no failure of ours.
        Err(Stop::Answer(answer)) => {
            let _ = answer.print();
            return ExitCode::SUCCESS;
        }
        Err(Stop::Malformed(line)) => return fail(&line, ExitCode::from(MALFORMED)),
    };
    match ernic::run(options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&format!("{error:#}"), ExitCode::FAILURE),
    }
}

/// Says the one line, whether or not anybody is there to read it.
fn fail(line: &str, code: ExitCode) -> ExitCode {
    let _ = writeln!(io::stderr(), "Error: {line}");
    code
}
