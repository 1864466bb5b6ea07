//! A terminal that is left as it was.

use std::io::{self, Write};

use super::view::Size;

/// The terminal's other screen, until it is dropped.
pub(super) struct Screen {
    out: io::Stdout,
}

const OTHER_SCREEN: &str = "\x1b[?1049h\x1b[?25l";
const BACK: &str = "\x1b[?25h\x1b[?1049l";

impl Screen {
    pub(super) fn open() -> Self {
        let screen = Self { out: io::stdout() };
        screen.write(OTHER_SCREEN);
        screen
    }

    pub(super) fn size(&self) -> Size {
        let size = rustix::termios::tcgetwinsize(&self.out).ok();
        let usual = Size::default();
        let or = |found: u16, usual: usize| if found == 0 { usual } else { usize::from(found) };
        size.map_or(usual, |size| Size {
            columns: or(size.ws_col, usual.columns),
            rows: or(size.ws_row, usual.rows),
        })
    }

    /// Over what is there, line by line, so that nothing flickers.
    pub(super) fn show(&self, picture: &str) {
        let lines = picture.trim_end().replace('\n', "\x1b[K\n");
        self.write(&format!("\x1b[H{lines}\x1b[K\x1b[J"));
    }

    /// Somebody who does not see it is no reason to end.
    fn write(&self, text: &str) {
        let mut out = &self.out;
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.write(BACK);
    }
}
