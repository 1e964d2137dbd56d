//! Progress of long work: one line on standard error that changes, if standard error is a terminal.

use std::borrow::Cow;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A line with the time so far and a message. Dropping it removes the line.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    pub(crate) fn start() -> Self {
        Self::on(ProgressDrawTarget::stderr())
    }

    fn on(target: ProgressDrawTarget) -> Self {
        let bar = ProgressBar::with_draw_target(None, target);
        bar.set_style(
            ProgressStyle::with_template("{spinner} {elapsed} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        bar.enable_steady_tick(Duration::from_millis(120));
        Self(bar)
    }

    /// Shows a message in place of the one before.
    pub(crate) fn show(&self, message: impl Into<Cow<'static, str>>) {
        self.0.set_message(message);
    }

    /// Returns true if standard error is no terminal, so that messages are not shown.
    pub(crate) fn is_hidden(&self) -> bool {
        self.0.is_hidden()
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

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

    #[test]
    fn a_terminal_shows_the_last_message_until_the_end() {
        let terminal = Terminal::default();
        let progress = Progress::on(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
        assert!(!progress.is_hidden());
        progress.show("round 1");
        progress.show("round 2");
        progress.0.tick();
        let shown = terminal.0.lock().unwrap().clone();
        assert!(shown.contains("round 2") && !shown.contains("round 1"), "{shown:?}");
        drop(progress);
        assert!(!terminal.0.lock().unwrap().contains("round"));
    }

    #[test]
    fn nothing_is_shown_beside_a_terminal() {
        assert!(Progress::on(ProgressDrawTarget::hidden()).is_hidden());
    }
}
