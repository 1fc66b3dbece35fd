//! `olivine completions`: a script for the shell.

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};
use serde_json::json;

use crate::Cli;
use crate::answer::{Answer, Failure};

#[derive(Args)]
pub(crate) struct CompletionsArgs {
    /// The shell.
    shell: Shell,
}

pub(crate) fn run(args: &CompletionsArgs) -> Result<Answer, Failure> {
    let mut script = Vec::new();
    generate(args.shell, &mut Cli::command(), "olivine", &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    let json = json!({ "shell": args.shell.to_string(), "script": script });
    Ok(Answer::new(script, json))
}
