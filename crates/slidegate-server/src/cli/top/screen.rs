//! Alternate screen of the terminal, which keeps the previous content.

use std::io::{self, Write};

use super::view::Size;

/// The terminal's alternate screen. Dropping it restores the main screen.
pub(super) struct Screen {
    out: io::Stdout,
}

const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

impl Screen {
    pub(super) fn open() -> Self {
        let screen = Self { out: io::stdout() };
        screen.write(ENTER);
        screen
    }

    /// Returns the size of the terminal, or the default if it is unknown.
    pub(super) fn size(&self) -> Size {
        let size = rustix::termios::tcgetwinsize(&self.out).ok();
        let default = Size::default();
        let or_default =
            |reported: u16, default: usize| if reported == 0 { default } else { usize::from(reported) };
        size.map_or(default, |size| Size {
            columns: or_default(size.ws_col, default.columns),
            rows: or_default(size.ws_row, default.rows),
        })
    }

    /// Replaces the content line by line, without flicker.
    pub(super) fn show(&self, content: &str) {
        let lines = content.trim_end().replace('\n', "\x1b[K\n");
        self.write(&format!("\x1b[H{lines}\x1b[K\x1b[J"));
    }

    /// Writes to the terminal and ignores errors.
    fn write(&self, text: &str) {
        let mut out = &self.out;
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.write(LEAVE);
    }
}
