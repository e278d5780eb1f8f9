//! The parent process: children that do the work, one problem each, under a time limit; and a new one for the rest where a
//! kernel takes a child with it. An error of a kernel stays in the driver's context for good, and so in its process.

use crate::job::Job;
use crate::row::{Machine, Message, Row, Status};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Lines of a child's standard error that are kept.
const LAST_LINES: usize = 12;

/// How a job went.
#[derive(Default)]
pub struct Outcome {
    /// A row for each kernel, by its number.
    pub rows: Vec<(usize, Row)>,
    /// What was measured of the machine.
    pub machine: Option<Machine>,
    /// Why the job could not be done at all.
    pub error: Option<String>,
}

/// What a kernel's row says where a child was not there to say it.
fn failed(job: &Job, knobs: &str, why: &str) -> Row {
    let shape = crate::job::shape(&job.shape).ok();
    Row {
        shape: job.shape.clone(),
        m: shape.map_or(0, |shape| shape.m),
        n: shape.map_or(0, |shape| shape.n),
        k: shape.map_or(0, |shape| shape.k),
        format: job.formats.clone(),
        gate: job.gate.clone(),
        knobs: knobs.to_owned(),
        status: Status::Failed,
        why: Some(why.to_owned()),
        seed: job.seed,
        ..Row::default()
    }
}

/// Does a job in children; `show` gets each row when it is there. A child that says nothing for `patience` is ended.
pub fn run(job: &Job, patience: Duration, show: &mut dyn FnMut(&Row)) -> Outcome {
    let mut outcome = Outcome::default();
    let mut job = job.clone();
    while !job.kernels.is_empty() {
        let before = job.kernels.len();
        let (at, end) = attend(&job, patience, &mut |message| match message {
            Message::Row(number, row) => {
                show(&row);
                outcome.rows.push((number, *row));
            }
            Message::Machine(machine) => outcome.machine = Some(machine),
            _ => {}
        });
        if outcome.machine.is_some() {
            job.bandwidth = false;
        }
        let done = |number: &usize| outcome.rows.iter().any(|(other, _)| other == number);
        job.kernels.retain(|(number, _)| !done(number));
        let Some(why) = end else {
            for (number, knobs) in std::mem::take(&mut job.kernels) {
                let row = failed(&job, &knobs, "the child said that all is done, and nothing of this one");
                show(&row);
                outcome.rows.push((number, row));
            }
            break;
        };
        // The kernel that the child died of; without one, or where nothing at all was done, the whole job is at fault.
        let culprit = at.and_then(|(number, step)| {
            let place = job.kernels.iter().position(|(other, _)| *other == number)?;
            Some((job.kernels.remove(place), step))
        });
        match culprit {
            Some(((number, knobs), step)) => {
                let row = failed(&job, &knobs, &format!("{step}: {why}"));
                show(&row);
                outcome.rows.push((number, row));
            }
            None if job.kernels.len() == before || job.kernels.is_empty() => {
                outcome.error = Some(why);
                break;
            }
            None => {}
        }
    }
    if let Some(why) = &outcome.error {
        for (number, knobs) in std::mem::take(&mut job.kernels) {
            let row = failed(&job, &knobs, why);
            show(&row);
            outcome.rows.push((number, row));
        }
    }
    outcome.rows.sort_by_key(|(number, _)| *number);
    outcome
}

/// Runs one child to its end, whichever that is: where it was last, and why it ended, if not because all was done.
fn attend(
    job: &Job,
    patience: Duration,
    hear: &mut dyn FnMut(Message),
) -> (Option<(usize, String)>, Option<String>) {
    let mut child = match start(job) {
        Ok(child) => child,
        Err(error) => return (None, Some(format!("no child process: {error}"))),
    };
    let lines = listen(&mut child);
    let last_words = last_words(&mut child);
    let (mut at, mut end) = (None, Some("the child ended without a word".to_owned()));
    loop {
        match lines.recv_timeout(patience) {
            Ok(line) => match serde_json::from_str(&line) {
                Ok(Message::Done) => end = None,
                Ok(Message::At(number, step)) => at = Some((number, step)),
                Ok(Message::Note(text)) => end = Some(text),
                Ok(message) => {
                    if let Message::Row(number, _) = &message
                        && at.as_ref().is_some_and(|(last, _)| last == number)
                    {
                        at = None;
                    }
                    hear(message);
                }
                // Not ours: the driver's, or the emulator's.
                Err(_) => {}
            },
            Err(RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                end = Some(format!("nothing for {} s: ended", patience.as_secs()));
                break;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    if let Ok(status) = child.wait()
        && let Some(why) = &mut end
        && status.code().is_none()
        && !why.ends_with("ended")
    {
        *why = format!("the child was ended: {status}");
    }
    let words = last_words.and_then(|thread| thread.join().ok()).unwrap_or_default();
    (at, end.map(|why| if words.is_empty() { why } else { format!("{why}\n{words}") }))
}

/// The last lines of the child's standard error, once it has ended.
fn last_words(child: &mut Child) -> Option<JoinHandle<String>> {
    let errors = child.stderr.take()?;
    Some(std::thread::spawn(move || {
        let mut last = VecDeque::new();
        for line in BufReader::new(errors).lines().map_while(Result::ok) {
            last.push_back(line);
            if last.len() > LAST_LINES {
                last.pop_front();
            }
        }
        last.into_iter().collect::<Vec<_>>().join("\n")
    }))
}

fn start(job: &Job) -> std::io::Result<Child> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg("--child")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .env("RUST_BACKTRACE", "0")
        .spawn()?;
    let text = serde_json::to_string(job).map_err(std::io::Error::other)?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(text.as_bytes())?;
    }
    Ok(child)
}

/// The child's lines, as they come.
fn listen(child: &mut Child) -> Receiver<String> {
    let (sender, lines) = channel();
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
    }
    lines
}
