//! The parent process: runs children, one problem each, under a time limit, and starts a new one for the remaining
//! kernels if a kernel kills a child. A kernel's error stays in the driver's context, and so in its process, for
//! good.

use crate::job::Job;
use crate::row::{Machine, Message, Row, Status};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Number of lines of a child's standard error that are kept.
const LAST_LINES: usize = 12;

/// Result of a job.
#[derive(Default)]
pub struct Outcome {
    /// A row for each kernel, by its number.
    pub rows: Vec<(usize, Row)>,
    /// Measurements of the machine.
    pub machine: Option<Machine>,
    /// Why the whole job failed.
    pub error: Option<String>,
}

/// The row of a kernel whose child could not report it.
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

/// Runs a job in children. `show` gets each row when it arrives. A child without output for `patience` is ended.
pub fn run(job: &Job, patience: Duration, show: &mut dyn FnMut(&Row)) -> Outcome {
    let own = || {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--child");
        Ok(command)
    };
    run_with(&own, job, patience, show)
}

/// As [`run`], with a given program as child.
fn run_with(
    program: &dyn Fn() -> std::io::Result<Command>,
    job: &Job,
    patience: Duration,
    show: &mut dyn FnMut(&Row),
) -> Outcome {
    let mut outcome = Outcome::default();
    let mut job = job.clone();
    while !job.kernels.is_empty() {
        let before = job.kernels.len();
        let (at, end) = attend(program, &job, patience, &mut |message| match message {
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
        // Whose fault it is can be told where one kernel is loaded at a time.
        job.load_threads = 1;
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

/// Runs one child until it ends. Returns its last step, and why it ended unless it finished.
fn attend(
    program: &dyn Fn() -> std::io::Result<Command>,
    job: &Job,
    patience: Duration,
    hear: &mut dyn FnMut(Message),
) -> (Option<(usize, String)>, Option<String>) {
    let mut child = match program().and_then(|command| start(command, job)) {
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

/// The last lines of a child's standard error, after it has ended.
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

fn start(mut command: Command, job: &Job) -> std::io::Result<Child> {
    let mut child = command
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

/// The child's lines as they arrive.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use std::time::Instant;

    const ROW: &str = r#"{\"Row\":[N,{\"shape\":\"8x8x8\",\"m\":8,\"n\":8,\"k\":8,\"format\":\"bf16\",\"gate\":\"\",\"device\":\"\",\"knobs\":\"\",\"plan\":\"\",\"status\":\"ok\",\"smem_bytes\":0,\"launches\":1,\"ctas\":1,\"sets\":1,\"calls\":1,\"reps\":1,\"seed\":1,\"hash\":\"\"}]}"#;

    fn job(kernels: usize) -> Job {
        Job {
            device: 0,
            formats: "bf16".to_owned(),
            shape: "8x8x8".to_owned(),
            gate: String::new(),
            scalars: Vec::new(),
            kernels: (0..kernels).map(|number| (number, format!("stages={number}"))).collect(),
            inputs: "peers".to_owned(),
            seed: 1,
            reps: 1,
            graph_ms: 1.0,
            interleave: false,
            check_only: true,
            line_info: false,
            limit: None,
            load_threads: 1,
            emit: None,
            bandwidth: false,
        }
    }

    /// Runs a job of two kernels with a shell script as child: `first` for the first start, `then` for later ones.
    fn with_shell(first: &str, then: &str) -> Vec<Row> {
        let folder = tempfile::tempdir().unwrap();
        let again = folder.path().join("again");
        let row = |script: &str| {
            (0..2).fold(script.to_owned(), |s, n| {
                s.replace(&format!("ROW{n}"), &format!("echo \"{}\"", ROW.replace("[N", &format!("[{n}"))))
            })
        };
        let script = |again: &Path| {
            format!(
                "cat > /dev/null; if [ -e {0} ]; then {2}; else touch {0}; {1}; fi",
                again.display(),
                row(first),
                row(then)
            )
        };
        let shell = || {
            let mut command = Command::new("sh");
            command.args(["-c", &script(&again)]);
            Ok(command)
        };
        let started = Instant::now();
        let outcome = run_with(&shell, &job(2), Duration::from_secs(2), &mut |_| {});
        assert!(started.elapsed() < Duration::from_secs(20));
        outcome.rows.into_iter().map(|(_, row)| row).collect()
    }

    const AT0: &str = r#"echo '{"At":[0,"checking"]}'"#;
    const DONE: &str = r#"echo '"Done"'"#;

    #[test]
    fn a_kernel_that_hangs_is_ended_and_the_next_one_runs() {
        let rows = with_shell(&format!("{AT0}; exec sleep 100"), &format!("ROW1; {DONE}"));
        assert_eq!([rows[0].status, rows[1].status], [Status::Failed, Status::Ok]);
        assert_eq!(rows[0].why.as_deref(), Some("checking: nothing for 2 s: ended"));
        assert_eq!(rows[0].knobs, "stages=0");
    }

    #[test]
    fn a_kernel_that_takes_its_process_along_is_told_with_its_last_words() {
        let rows = with_shell(&format!("{AT0}; echo the end >&2; kill -SEGV $$"), &format!("ROW1; {DONE}"));
        assert_eq!([rows[0].status, rows[1].status], [Status::Failed, Status::Ok]);
        let why = rows[0].why.as_deref().unwrap();
        assert!(
            why.starts_with("checking: the child was ended: signal") && why.ends_with("the end"),
            "{why}"
        );
    }

    #[test]
    fn rows_before_an_error_are_kept() {
        let lost = r#"ROW0; echo '{"Note":"the context is lost"}'"#;
        let rows = with_shell(lost, &format!("ROW1; {DONE}"));
        assert_eq!([rows[0].status, rows[1].status], [Status::Ok, Status::Ok]);
    }

    #[test]
    fn a_job_that_cannot_be_done_ends() {
        let rows = with_shell(r#"echo '{"Note":"no GPU"}'"#, "true");
        assert!(rows.iter().all(|row| row.status == Status::Failed && row.why.as_deref() == Some("no GPU")));
        let rows = with_shell(DONE, "true");
        assert!(
            rows.iter().all(|row| row.why.as_deref().is_some_and(|why| why.contains("nothing of this one")))
        );
        assert_eq!(rows.len(), 2);
    }
}
