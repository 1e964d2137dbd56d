//! Progress of long work on standard error: one line that changes if it is a terminal, otherwise a line at times.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time between two lines in a file.
const PERIOD: Duration = Duration::from_secs(10);

/// A line with the time so far and a message. Dropping it removes the line from a terminal.
pub(crate) struct Progress {
    bar: ProgressBar,
    started: Instant,
    /// Without a terminal, the output and the time after which a message is printed.
    lines: Mutex<(Box<dyn Write + Send>, Duration)>,
}

impl Progress {
    pub(crate) fn start() -> Self {
        Self::on(ProgressDrawTarget::stderr(), Box::new(io::stderr()), PERIOD)
    }

    fn on(target: ProgressDrawTarget, file: Box<dyn Write + Send>, first: Duration) -> Self {
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(
            ProgressStyle::with_template("{spinner} {elapsed} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        bar.enable_steady_tick(Duration::from_millis(120));
        Self { bar, started: Instant::now(), lines: Mutex::new((file, first)) }
    }

    /// Shows a message in place of the one before. A file gets it if the line before is some seconds old.
    pub(crate) fn show(&self, message: impl Into<String>) {
        self.say(message.into(), |elapsed, due| elapsed >= due);
    }

    /// Shows a message in place of the one before. A file gets it, too.
    pub(crate) fn announce(&self, message: impl Into<String>) {
        self.say(message.into(), |_, _| true);
    }

    fn say(&self, message: String, is_due: impl Fn(Duration, Duration) -> bool) {
        if self.bar.is_hidden() {
            let elapsed = self.started.elapsed();
            let (file, due) = &mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            if is_due(elapsed, *due) {
                // The reader of standard error may be gone.
                let _ = writeln!(file, "{message} ({} s)", elapsed.as_secs());
                *due = elapsed + PERIOD;
            }
        }
        self.bar.set_message(message);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use indicatif::TermLike;

    use super::*;

    /// A terminal that keeps what was written to it.
    #[derive(Debug, Clone, Default)]
    struct Terminal(Arc<Mutex<String>>);

    impl TermLike for Terminal {
        fn width(&self) -> u16 {
            80
        }

        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }

        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }

        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }

        fn clear_line(&self) -> io::Result<()> {
            self.0.lock().unwrap().clear();
            Ok(())
        }

        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[derive(Clone, Default)]
    struct File(Arc<Mutex<Vec<u8>>>);

    impl File {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for File {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_terminal_shows_the_last_message_until_the_end() {
        let terminal = Terminal::default();
        let target = ProgressDrawTarget::term_like(Box::new(terminal.clone()));
        let file = File::default();
        let progress = Progress::on(target, Box::new(file.clone()), Duration::ZERO);
        progress.show("round 1");
        progress.show("round 2");
        progress.bar.tick();
        let shown = terminal.0.lock().unwrap().clone();
        assert!(shown.contains("round 2") && !shown.contains("round 1"), "{shown:?}");
        drop(progress);
        assert!(!terminal.0.lock().unwrap().contains("round"));
        assert_eq!(file.text(), "");
    }

    #[test]
    fn a_file_gets_a_line_at_times() {
        let shown = |first| {
            let file = File::default();
            let progress = Progress::on(ProgressDrawTarget::hidden(), Box::new(file.clone()), first);
            progress.show("round 1");
            progress.show("round 2");
            file.text()
        };
        let announced = File::default();
        Progress::on(ProgressDrawTarget::hidden(), Box::new(announced.clone()), Duration::MAX)
            .announce("stage");
        assert!(announced.text().starts_with("stage ("));
        let (first, other) = (shown(Duration::ZERO), shown(Duration::MAX));
        assert!(first.starts_with("round 1 (") && other.is_empty(), "{first:?} {other:?}");
    }
}
