//! Runs tuning in child processes. A kernel that destroys the driver's context, ends the process or never ends costs only
//! that process; the next one continues without that kernel.

use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Limit on the kernels of one shape that cost a process; beyond it the driver is at fault, not a kernel.
const MOST_LOST: usize = 16;

/// A line from a child to its parent. The parent ignores other lines of its standard output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Message {
    /// The child is about to launch the kernel with these knobs.
    Trying(String),
    /// A kernel destroyed the context: its knobs, and the reason.
    Lost(String, String),
    /// The run is over: the text to print, and the row of the summary.
    Done(String, String),
    /// There is nothing to tune, or a failure that does not come from a kernel.
    Failed(String),
}

/// Sends a message to the parent. If the parent is gone, the message is dropped and the child ends after its run.
pub fn say(message: &Message) {
    if let Ok(text) = serde_json::to_string(message) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{text}");
        let _ = out.flush();
    }
}

/// Kernels that cost a process: their knobs, and the reason.
pub type Lost = Vec<(String, String)>;

/// Reads [`Lost`] from the child's standard input.
pub fn heard() -> Result<Lost, String> {
    let text = std::io::read_to_string(std::io::stdin()).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

/// Runs children until one finishes, each without the kernels that cost the earlier ones their process. Returns its text
/// and its row, and those kernels.
pub fn run(
    mut child: impl FnMut() -> Command,
    patience: Duration,
    mut told: impl FnMut(&str, &str),
) -> Result<(String, String, Lost), String> {
    let mut lost = Lost::new();
    loop {
        let (knobs, reason) = match once(child(), &lost, patience)? {
            Ok((said, row)) => return Ok((said, row, lost)),
            Err(gone) => gone,
        };
        told(&knobs, &reason);
        if lost.len() == MOST_LOST || lost.iter().any(|(known, _)| *known == knobs) {
            return Err(format!(
                "{} kernels took their processes along, the last with {reason}",
                lost.len() + 1
            ));
        }
        lost.push((knobs, reason));
    }
}

type Finished = Result<(String, String), (String, String)>;

/// Runs one child and returns its messages, or the kernel that ended it.
fn once(mut command: Command, lost: &Lost, patience: Duration) -> Result<Finished, String> {
    let words = |error: std::io::Error| format!("a process to tune in: {error}");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(words)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A child that is gone already has nothing to read, and says so by its status.
        let _ = stdin.write_all(serde_json::to_string(lost).unwrap_or_default().as_bytes());
    }
    let (sender, receiver) = channel();
    let reader = child.stdout.take().map(|stdout| {
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Ok(message) = serde_json::from_str::<Message>(&line)
                    && sender.send(message).is_err()
                {
                    break;
                }
            }
        })
    });
    let (mut trying, mut last, mut silent) = (None, None, false);
    loop {
        match receiver.recv_timeout(patience) {
            Ok(Message::Trying(knobs)) => trying = Some(knobs),
            Ok(message) => last = Some(message),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                silent = true;
                let _ = child.kill();
                break;
            }
        }
    }
    let status: ExitStatus = child.wait().map_err(words)?;
    if let Some(reader) = reader.filter(|_| !silent) {
        let _ = reader.join();
    }
    match (last, trying) {
        (Some(Message::Done(said, row)), _) => Ok(Ok((said, row))),
        (Some(Message::Lost(knobs, reason)), _) => Ok(Err((knobs, reason))),
        (Some(Message::Failed(reason)), _) => Err(reason),
        (_, Some(knobs)) if silent => Ok(Err((knobs, format!("no word for {} s", patience.as_secs_f64())))),
        (_, Some(knobs)) => Ok(Err((knobs, format!("the end of its process ({status})")))),
        (_, None) if silent => Err(format!(
            "a process to tune in said nothing for {} s: --patience has more",
            patience.as_secs_f64()
        )),
        (_, None) => Err(format!("a process to tune in ended before its first kernel ({status})")),
    }
}
